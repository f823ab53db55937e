import * as vscode from "vscode";
import type { LanguageClient } from "vscode-languageclient/node";
import type { Connection } from "./connection";
import { tell } from "./failures";
import type { Previews } from "./preview";
import { withProgress } from "./progress";
import type { EditResult, Place } from "./protocol";

/** Edits of a selection: asks what to do, shows the difference, changes nothing before that. */
export class Edits {
  private lastInstruction = "";

  constructor(
    private readonly connection: Connection,
    private readonly previews: Previews,
  ) {}

  /** place: from a code action; else the selected lines, or the cursor's. */
  async run(place?: Place): Promise<void> {
    const document = await documentOf(place);
    const client = document && this.connection.require();
    if (document === undefined || client === undefined) return;
    const range = rangeOf(client, place);
    const instruction = await this.ask(range);
    if (instruction === undefined) return;
    try {
      await this.edit(client, document, range, instruction);
    } catch (error) {
      tell(error);
    }
  }

  private async ask(range: vscode.Range): Promise<string | undefined> {
    const last = range.end.line - (range.end.character === 0 && !range.isEmpty ? 1 : 0);
    const lines =
      last === range.start.line
        ? `line ${String(last + 1)}`
        : `lines ${String(range.start.line + 1)} to ${String(last + 1)}`;
    const said = await vscode.window.showInputBox({
      title: `Edit ${lines}`,
      prompt: "What should change? The difference is shown before anything is changed.",
      placeHolder: "Add type hints.",
      value: this.lastInstruction,
      ignoreFocusOut: true,
      validateInput: (text) => (text.trim() === "" ? "Say what should change." : undefined),
    });
    if (said === undefined) return undefined;
    this.lastInstruction = said.trim();
    return this.lastInstruction;
  }

  private async edit(
    client: LanguageClient,
    document: vscode.TextDocument,
    range: vscode.Range,
    instruction: string,
  ): Promise<void> {
    const result = await withProgress<EditResult>(client, "Pillion: editing", "pillion/edit", {
      uri: client.code2ProtocolConverter.asUri(document.uri),
      version: document.version,
      range: client.code2ProtocolConverter.asRange(range),
      instruction,
    });
    if (result === undefined) return;
    if (result.hunks.length === 0) {
      void vscode.window.showInformationMessage(
        `Pillion: ${result.message || "nothing has to change."}`,
      );
      return;
    }
    if (document.version !== result.version) {
      void vscode.window.showWarningMessage(
        "Pillion: the file was changed meanwhile, so the edit was not used. Ask again.",
      );
      return;
    }
    const edits = await client.protocol2CodeConverter.asTextEdits(
      result.hunks.flatMap((hunk) => [...hunk.edits]),
    );
    await this.previews.show(document, edits, instruction);
  }
}

/** The open document of a place, or the active one; a word to the user where there is none. */
export async function documentOf(place?: Place): Promise<vscode.TextDocument | undefined> {
  if (place?.uri !== undefined) {
    return vscode.workspace.openTextDocument(vscode.Uri.parse(place.uri));
  }
  const document = vscode.window.activeTextEditor?.document;
  if (document === undefined) {
    void vscode.window.showInformationMessage("Pillion: open a file and select code first.");
  }
  return document;
}

/** In an editor: the selection, or the cursor's line. */
export function rangeOf(client: LanguageClient, place?: Place): vscode.Range {
  if (place?.range !== undefined) return client.protocol2CodeConverter.asRange(place.range);
  return vscode.window.activeTextEditor?.selection ?? new vscode.Range(0, 0, 0, 0);
}
