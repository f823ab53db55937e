import * as vscode from "vscode";
import {
  TextDocumentEdit,
  type LanguageClient,
  type WorkspaceEdit,
} from "vscode-languageclient/node";
import type { Connection } from "./connection";
import { tell } from "./failures";
import { withProgress } from "./progress";
import type { RefactorResult } from "./protocol";

/** One file of a change set, before and after it. */
interface Change {
  readonly uri: vscode.Uri;
  readonly before: string;
  readonly after: string;
}

/**
 * Refactors of the workspace: the daemon makes the edits, VS Code's own refactor preview shows them
 * and lets each be left out, and one command takes the whole set back.
 */
export class Refactors {
  private last: readonly Change[] = [];

  constructor(private readonly connection: Connection) {}

  async run(): Promise<void> {
    const client = this.connection.require();
    const folder = client && (await folderToChange());
    const asked = folder && (await askedFor());
    if (client === undefined || folder === undefined || asked === undefined) return;
    try {
      const result = await withProgress<RefactorResult>(
        client,
        "Pillion: refactoring",
        "pillion/refactor",
        { root: folder.uri.fsPath, ...asked },
      );
      if (result !== undefined) await this.propose(client, result);
    } catch (error) {
      tell(error);
    }
  }

  /** Give the files of the last refactor their text back, where nobody changed them since. */
  async undo(): Promise<void> {
    const edit = new vscode.WorkspaceEdit();
    const changedSince: string[] = [];
    for (const { uri, before, after } of this.last) {
      const document = await vscode.workspace.openTextDocument(uri);
      const name = vscode.workspace.asRelativePath(uri);
      if (document.getText() === after) edit.replace(uri, everythingIn(document), before);
      else if (document.getText() !== before) changedSince.push(name);
    }
    if (!(await vscode.workspace.applyEdit(edit, { isRefactoring: true }))) {
      void vscode.window.showErrorMessage("Pillion: the editor did not take the changes back.");
      return;
    }
    await this.remember([]);
    const but =
      changedSince.length === 0
        ? ""
        : ` Left alone, because changed since: ${changedSince.join(", ")}.`;
    void vscode.window.showInformationMessage(`Pillion: ${files(edit.size)} restored.${but}`);
  }

  private async propose(client: LanguageClient, result: RefactorResult): Promise<void> {
    const left = [
      ...result.skipped,
      ...result.files.filter((file) => file.state === "refused"),
    ].map(({ path, reason }) => `${path}: ${reason}`);
    const edit = result.edit && (await confirmed(client, result.edit));
    if (edit === undefined || edit.size === 0) {
      const why = left.length === 0 ? "no file has to change." : left.join("; ");
      void vscode.window.showInformationMessage(`Pillion: ${why}`);
      return;
    }
    const before = await textsOf(edit.entries().map(([uri]) => uri));
    if (!(await vscode.workspace.applyEdit(edit, { isRefactoring: true }))) return;
    const after = await textsOf(before.map(({ uri }) => uri));
    const changed = before.flatMap(({ uri, text }, index) => {
      const now = after[index]?.text ?? text;
      return now === text ? [] : [{ uri, before: text, after: now }];
    });
    await this.remember(changed);
    if (changed.length > 0) await this.report(changed.length, left);
  }

  private async report(changed: number, left: readonly string[]): Promise<void> {
    const but = left.length === 0 ? "" : ` Left out: ${left.join("; ")}.`;
    const undo = "Undo";
    const said = `Pillion: ${files(changed)} changed.${but}`;
    if ((await vscode.window.showInformationMessage(said, undo)) === undo) await this.undo();
  }

  private async remember(changes: readonly Change[]): Promise<void> {
    this.last = changes;
    const known = changes.length > 0;
    await vscode.commands.executeCommand("setContext", "pillion.canUndoRefactor", known);
  }
}

async function folderToChange(): Promise<vscode.WorkspaceFolder | undefined> {
  const folders = vscode.workspace.workspaceFolders ?? [];
  if (folders.length > 1) return vscode.window.showWorkspaceFolderPick();
  if (folders.length === 0) {
    void vscode.window.showInformationMessage("Pillion: open a folder first.");
  }
  return folders[0];
}

async function askedFor(): Promise<{ instruction: string; globs: string[] } | undefined> {
  const instruction = await vscode.window.showInputBox({
    title: "Refactor the workspace (1 of 2)",
    prompt: "What should change? Files are searched for what is in backticks.",
    placeHolder: "Use `load` instead of `fetch`.",
    ignoreFocusOut: true,
    validateInput: (text) => (text.trim() === "" ? "Say what should change." : undefined),
  });
  if (instruction === undefined) return undefined;
  const searched = /`[^`]+`/.test(instruction);
  const patterns = await vscode.window.showInputBox({
    title: "Refactor the workspace (2 of 2)",
    prompt: searched
      ? "Which files? Empty: all that have what is in backticks."
      : "Which files? Patterns as in .gitignore, apart by blanks; ! leaves out.",
    placeHolder: "*.py !tests/**",
    ignoreFocusOut: true,
    validateInput: (text) =>
      text.trim() === "" && !searched ? "Name the files, such as *.py" : undefined,
  });
  if (patterns === undefined) return undefined;
  const globs = patterns.split(/\s+/).filter((glob) => glob !== "");
  return { instruction: instruction.trim(), globs };
}

/**
 * The daemon's edit, in a form that makes VS Code show its preview with every change chosen.
 *
 * The preview comes where an edit needs confirmation, and leaves out all that do until they are
 * chosen one by one. So what needs confirmation is one empty insertion, at the very end.
 */
async function confirmed(
  client: LanguageClient,
  edit: WorkspaceEdit,
): Promise<vscode.WorkspaceEdit> {
  const made = new vscode.WorkspaceEdit();
  let last: vscode.Uri | undefined;
  for (const change of edit.documentChanges ?? []) {
    if (!TextDocumentEdit.is(change)) continue;
    last = client.protocol2CodeConverter.asUri(change.textDocument.uri);
    for (const one of change.edits) {
      if (!("newText" in one)) continue;
      made.replace(last, client.protocol2CodeConverter.asRange(one.range), one.newText);
    }
  }
  if (last !== undefined) {
    const { end } = everythingIn(await vscode.workspace.openTextDocument(last));
    made.insert(last, end, "", { needsConfirmation: true, label: "Preview" });
  }
  return made;
}

async function textsOf(uris: readonly vscode.Uri[]): Promise<{ uri: vscode.Uri; text: string }[]> {
  const read = async (uri: vscode.Uri): Promise<{ uri: vscode.Uri; text: string }> => {
    const document = await vscode.workspace.openTextDocument(uri);
    return { uri, text: document.getText() };
  };
  return Promise.all(uris.map(read));
}

function everythingIn(document: vscode.TextDocument): vscode.Range {
  return document.validateRange(new vscode.Range(0, 0, document.lineCount, 0));
}

function files(count: number): string {
  return count === 1 ? "1 file" : `${String(count)} files`;
}
