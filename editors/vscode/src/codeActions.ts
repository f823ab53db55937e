import * as vscode from "vscode";
import { CodeActionResolveRequest } from "vscode-languageclient/node";
import type { LanguageClient, Middleware } from "vscode-languageclient/node";
import type { Connection } from "./connection";
import { tell } from "./failures";
import type { Previews } from "./preview";

type Provide = NonNullable<Middleware["provideCodeActions"]>;

export const APPLY_ACTION = "pillion.applyAction";

/**
 * The daemon's code actions, which it computes only when one is picked.
 *
 * VS Code would apply what comes of that unseen. So each becomes a command, which shows that the
 * model works, lets the user cancel, and shows the difference before anything is changed.
 */
export class CodeActions {
  constructor(private readonly previews: Previews) {}

  readonly provide: Provide = async (document, range, context, token, next) => {
    const found = await next(document, range, context, token);
    return found?.map((action) => {
      if (!(action instanceof vscode.CodeAction) || action.command !== undefined) return action;
      const offered = new vscode.CodeAction(action.title, action.kind);
      if (action.diagnostics !== undefined) offered.diagnostics = action.diagnostics;
      offered.command = {
        command: APPLY_ACTION,
        title: action.title,
        arguments: [action, document.uri],
      };
      return offered;
    });
  };

  async apply(connection: Connection, action: vscode.CodeAction, uri: vscode.Uri): Promise<void> {
    const client = connection.require();
    if (client === undefined) return;
    try {
      const document = await vscode.workspace.openTextDocument(uri);
      const version = document.version;
      const edit = await resolved(client, action);
      const edits = edit?.get(uri) ?? [];
      // The daemon has said why where it made no edit.
      if (edits.length === 0 || document.version !== version) return;
      await this.previews.show(document, edits, action.title.replace(/^Pillion: /, ""));
    } catch (error) {
      tell(error);
    }
  }
}

async function resolved(
  client: LanguageClient,
  action: vscode.CodeAction,
): Promise<vscode.WorkspaceEdit | undefined> {
  const location = vscode.ProgressLocation.Notification;
  const options = { location, title: action.title, cancellable: true };
  return vscode.window.withProgress(options, async (_, cancel) => {
    const asked = client.code2ProtocolConverter.asCodeActionSync(action);
    try {
      const made = await client.sendRequest(CodeActionResolveRequest.type, asked, cancel);
      return await client.protocol2CodeConverter.asWorkspaceEdit(made.edit ?? null);
    } catch (error) {
      if (cancel.isCancellationRequested) return undefined;
      throw error;
    }
  });
}
