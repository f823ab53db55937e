import type { Range, TextEdit, WorkspaceEdit } from "vscode-languageclient/node";

/** What the daemon says over JSON-RPC beside LSP; docs/PROTOCOL.md has the words. */

/** `summary` of `pillion/status`, and the params of `pillion/didChangeStatus`. */
export interface Summary {
  readonly state: "loading" | "ready" | "busy" | "target-only" | "error" | "stopped";
  readonly message: string;
  readonly action: string;
  readonly percent: number | null;
  readonly model: string;
  readonly target_only: string;
  readonly tok_s: number | null;
  readonly surplus_ms: number | null;
  readonly cache_hit_share: number | null;
}

export interface StatusResult {
  readonly summary: Summary;
  readonly url: string | null;
}

/** The place that an edit or an explanation is about: the `arguments` of the code actions' commands. */
export interface Place {
  readonly uri: string;
  readonly version?: number;
  readonly range?: Range;
  readonly question?: string;
}

export interface EditHunk {
  readonly range: Range;
  readonly edits: readonly TextEdit[];
}

export interface EditResult {
  readonly hunks: readonly EditHunk[];
  readonly version: number;
  readonly message: string;
}

export interface ExplainResult {
  readonly markdown: string;
  readonly finish_reason: string;
}

export interface RefactorOutcome {
  readonly path: string;
  readonly state: "changed" | "unchanged" | "refused";
  readonly reason: string;
}

export interface RefactorResult {
  readonly files: readonly RefactorOutcome[];
  readonly skipped: readonly { readonly path: string; readonly reason: string }[];
  readonly edit?: WorkspaceEdit;
}
