import * as vscode from "vscode";
import { hunkAt, lineHunks, splitLines, type LineHunk } from "./lineDiff";
import { ProposalFiles, SCHEME } from "./proposalFiles";

/** A suggested text of a document, beside the document as it is. */
interface Proposal {
  readonly target: vscode.Uri;
  readonly uri: vscode.Uri;
  /** Of the target; any other version is somebody else's change. */
  version: number;
}

/**
 * Shows an edit as a difference before anything is changed, and takes or leaves it, whole or change
 * by change.
 *
 * The right side is a document in memory that can be written in, so VS Code's own arrows between
 * the two sides work as well. What is accepted is what it holds then.
 */
export class Previews implements vscode.Disposable {
  private readonly files = new ProposalFiles();
  private readonly open = new Map<string, Proposal>();
  private readonly subscriptions: vscode.Disposable[];
  private count = 0;
  private work: Promise<unknown> = Promise.resolve();

  constructor() {
    this.subscriptions = [
      vscode.workspace.registerFileSystemProvider(SCHEME, this.files, { isCaseSensitive: true }),
      vscode.workspace.onDidChangeTextDocument((event) => void this.textChanged(event)),
      vscode.window.tabGroups.onDidChangeTabs((event) => {
        for (const tab of event.closed) this.forget(proposalOf(tab));
      }),
    ];
  }

  dispose(): void {
    vscode.Disposable.from(...this.subscriptions).dispose();
  }

  /** Show `document` with `edits` applied. */
  async show(
    document: vscode.TextDocument,
    edits: readonly vscode.TextEdit[],
    title: string,
  ): Promise<void> {
    const text = applied(document, edits);
    const name = document.uri.path.split("/").at(-1) ?? "";
    const uri = vscode.Uri.from({
      scheme: SCHEME,
      path: `/suggestion ${String(++this.count)}/${name}`,
    });
    this.files.put(uri, text);
    this.open.set(uri.toString(), { target: document.uri, uri, version: document.version });
    const right = await vscode.workspace.openTextDocument(uri);
    if (right.languageId !== document.languageId) {
      await vscode.languages.setTextDocumentLanguage(right, document.languageId);
    }
    const first = differences(document, right)[0]?.otherStart ?? 0;
    await vscode.commands.executeCommand("vscode.diff", document.uri, uri, `${name}: ${title}`, {
      preview: false,
      selection: new vscode.Range(first, 0, first, 0),
    });
  }

  /** Take everything that the right side still proposes. */
  accept(): Promise<void> {
    return this.next((shown) => this.take(shown, differences(shown.left, shown.right)));
  }

  discard(): Promise<void> {
    return this.next((shown) => this.close(shown.proposal));
  }

  acceptHunk(): Promise<void> {
    return this.next(async (shown) => {
      const hunk = hunkAt(differences(shown.left, shown.right), shown.line);
      if (hunk !== undefined) await this.take(shown, [hunk]);
    });
  }

  rejectHunk(): Promise<void> {
    return this.next(async (shown) => {
      const { left, right } = shown;
      const hunk = hunkAt(differences(left, right), shown.line);
      if (hunk === undefined) return;
      const edit = new vscode.WorkspaceEdit();
      const old = splitLines(left.getText()).slice(hunk.start, hunk.end).join("");
      edit.replace(right.uri, linesOf(right, hunk.otherStart, hunk.otherEnd), old);
      await vscode.workspace.applyEdit(edit);
      await this.goOn(shown);
    });
  }

  /** Do something with the active proposal, after what was asked for before: keys come quickly. */
  private next(act: (shown: Shown) => Promise<void>): Promise<void> {
    const step = async (): Promise<void> => {
      const shown = await this.shown();
      if (shown !== undefined) await act(shown);
    };
    const done = this.work.then(step);
    this.work = done.catch(() => undefined);
    return done;
  }

  /** Change the target as `hunks` say; its own undo takes it back. */
  private async take(shown: Shown, hunks: readonly LineHunk[]): Promise<void> {
    const { proposal, left, right } = shown;
    const lines = splitLines(right.getText());
    const edit = new vscode.WorkspaceEdit();
    for (const hunk of hunks) {
      const text = lines.slice(hunk.otherStart, hunk.otherEnd).join("");
      edit.replace(left.uri, linesOf(left, hunk.start, hunk.end), text);
    }
    proposal.version = left.version + 1;
    if (!(await vscode.workspace.applyEdit(edit))) {
      proposal.version = left.version;
      void vscode.window.showErrorMessage(
        `Pillion: the editor did not change ${vscode.workspace.asRelativePath(left.uri)}; ` +
          "it may be read-only.",
      );
      return;
    }
    await this.goOn(shown);
  }

  /** Go on to the next change, or back to the document where none is left. */
  private async goOn(shown: Shown): Promise<void> {
    const next = hunkAt(differences(shown.left, shown.right), shown.line);
    if (next !== undefined) {
      const editor = vscode.window.activeTextEditor;
      if (editor?.document !== shown.right) return;
      const start = new vscode.Range(next.otherStart, 0, next.otherStart, 0);
      editor.selection = new vscode.Selection(start.start, start.end);
      editor.revealRange(start, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
      return;
    }
    await this.close(shown.proposal);
    await vscode.window.showTextDocument(shown.left, { preview: false });
  }

  /** What the active editor shows, if it is a proposal. */
  private async shown(): Promise<Shown | undefined> {
    const tab = vscode.window.tabGroups.activeTabGroup.activeTab;
    const proposal = tab && this.open.get(proposalOf(tab) ?? "");
    if (proposal === undefined) return undefined;
    const left = await vscode.workspace.openTextDocument(proposal.target);
    const right = await vscode.workspace.openTextDocument(proposal.uri);
    const editor = vscode.window.activeTextEditor;
    const line = editor?.selection.active.line ?? 0;
    const hunks = differences(left, right);
    // In the left side the cursor stands in the old text.
    const there = editor?.document === left ? hunks.find((hunk) => line < hunk.end) : undefined;
    return { proposal, left, right, line: there?.otherStart ?? line };
  }

  private async textChanged(event: vscode.TextDocumentChangeEvent): Promise<void> {
    const { document } = event;
    if (event.contentChanges.length === 0) return;
    if (document.uri.scheme === SCHEME) {
      // So that closing it asks nothing: it is not a file that anybody wants to keep.
      await document.save();
      return;
    }
    for (const proposal of this.open.values()) {
      if (proposal.target.toString() !== document.uri.toString()) continue;
      if (proposal.version === document.version) continue;
      await this.close(proposal);
      const name = vscode.workspace.asRelativePath(document.uri);
      void vscode.window.showInformationMessage(
        `Pillion: ${name} was changed meanwhile, so the edit of the old text was discarded.`,
      );
    }
  }

  private async close(proposal: Proposal): Promise<void> {
    const tabs = vscode.window.tabGroups.all.flatMap((group) => group.tabs);
    await vscode.window.tabGroups.close(
      tabs.filter((tab) => proposalOf(tab) === proposal.uri.toString()),
    );
    this.forget(proposal.uri.toString());
  }

  private forget(uri: string | undefined): void {
    if (uri !== undefined && this.open.delete(uri)) this.files.remove(vscode.Uri.parse(uri));
  }
}

interface Shown {
  readonly proposal: Proposal;
  readonly left: vscode.TextDocument;
  readonly right: vscode.TextDocument;
  /** Of the cursor, in the right side. */
  readonly line: number;
}

function proposalOf(tab: vscode.Tab): string | undefined {
  const input = tab.input;
  if (!(input instanceof vscode.TabInputTextDiff) || input.modified.scheme !== SCHEME) {
    return undefined;
  }
  return input.modified.toString();
}

function differences(left: vscode.TextDocument, right: vscode.TextDocument): LineHunk[] {
  return lineHunks(splitLines(left.getText()), splitLines(right.getText()));
}

/** From the start of a line to the start of another, or to the end of the text. */
function linesOf(document: vscode.TextDocument, start: number, end: number): vscode.Range {
  return document.validateRange(new vscode.Range(start, 0, end, 0));
}

/** The document's text with edits, all of them in positions of the text as it is. */
export function applied(document: vscode.TextDocument, edits: readonly vscode.TextEdit[]): string {
  const text = document.getText();
  const places = edits
    .map(({ range, newText }) => ({
      start: document.offsetAt(range.start),
      end: document.offsetAt(range.end),
      newText,
    }))
    .sort((a, b) => a.start - b.start || a.end - b.end);
  let made = "";
  let at = 0;
  for (const { start, end, newText } of places) {
    made += text.slice(at, start) + newText;
    at = end;
  }
  return made + text.slice(at);
}
