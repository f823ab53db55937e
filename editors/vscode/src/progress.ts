import * as vscode from "vscode";
import { WorkDoneProgress, type LanguageClient } from "vscode-languageclient/node";

let tokens = 0;

/** Names the progress of one request; no other client of the connection uses these. */
export function newToken(): string {
  return `pillion-vscode-${String(++tokens)}`;
}

/**
 * Send a request and show how far it is, with a button that cancels it.
 *
 * Undefined where the user cancelled it.
 */
export async function withProgress<R>(
  client: LanguageClient,
  title: string,
  method: string,
  params: object,
): Promise<R | undefined> {
  const location = vscode.ProgressLocation.Notification;
  return vscode.window.withProgress(
    { location, title, cancellable: true },
    async (show, cancel) => {
      const workDoneToken = newToken();
      let shown = 0;
      const listener = client.onProgress(WorkDoneProgress.type, workDoneToken, (value) => {
        if (value.kind !== "report") return;
        const increment = (value.percentage ?? shown) - shown;
        shown += Math.max(increment, 0);
        show.report({
          ...(value.message === undefined ? {} : { message: value.message }),
          increment: Math.max(increment, 0),
        });
      });
      try {
        return await client.sendRequest<R>(method, { ...params, workDoneToken }, cancel);
      } catch (error) {
        if (cancel.isCancellationRequested) return undefined;
        throw error;
      } finally {
        listener.dispose();
      }
    },
  );
}
