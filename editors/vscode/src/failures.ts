import * as vscode from "vscode";
import { LSPErrorCodes, ResponseError } from "vscode-languageclient/node";

/** Tell the user why a request failed; the daemon's messages are made for that. */
export function tell(error: unknown): void {
  if (error instanceof vscode.CancellationError) return;
  if (error instanceof ResponseError && error.code === LSPErrorCodes.RequestCancelled) return;
  const message = error instanceof Error ? error.message : String(error);
  void vscode.window.showErrorMessage(`Pillion: ${message}`);
}
