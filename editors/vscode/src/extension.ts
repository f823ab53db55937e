import * as vscode from "vscode";
import { APPLY_ACTION, CodeActions } from "./codeActions";
import { Connection } from "./connection";
import { Edits } from "./edit";
import { Explanations } from "./explain";
import { tell } from "./failures";
import { Previews } from "./preview";
import type { Place, StatusResult } from "./protocol";
import { Refactors } from "./refactor";
import { settings } from "./settings";
import { StatusBar } from "./statusBar";
import { Suggestions } from "./suggestions";

export function activate(context: vscode.ExtensionContext): void {
  const log = vscode.window.createOutputChannel("Pillion", { log: true });
  const previews = new Previews();
  const actions = new CodeActions(previews);
  const connection = new Connection(log, {
    provideInlineCompletionItems: new Suggestions().provide,
    provideCodeActions: actions.provide,
  });
  const edits = new Edits(connection, previews);
  const explanations = new Explanations(connection);
  const refactors = new Refactors(connection);
  const statusBar = new StatusBar(connection);
  const commands: Record<string, (...args: never[]) => unknown> = {
    "pillion.showMenu": () => statusBar.menu(),
    "pillion.trigger": () => vscode.commands.executeCommand("editor.action.inlineSuggest.trigger"),
    "pillion.editSelection": (place?: Place) => edits.run(place),
    "pillion.explain": (place?: Place) => explanations.run(place),
    "pillion.refactorWorkspace": () => refactors.run(),
    "pillion.undoRefactor": () => refactors.undo(),
    "pillion.acceptEdit": () => previews.accept(),
    "pillion.discardEdit": () => previews.discard(),
    "pillion.acceptHunk": () => previews.acceptHunk(),
    "pillion.rejectHunk": () => previews.rejectHunk(),
    "pillion.toggle": () => settings.toggle(),
    "pillion.toggleLanguage": () =>
      settings.toggle(vscode.window.activeTextEditor?.document.languageId),
    "pillion.start": () => {
      connection.retry();
    },
    "pillion.stop": () => connection.shutDown().catch(tell),
    "pillion.restart": () => connection.shutDown(true).catch(tell),
    "pillion.showLog": () => {
      log.show();
    },
    "pillion.openDashboard": () => openDashboard(connection),
    [APPLY_ACTION]: (action: vscode.CodeAction, uri: vscode.Uri) =>
      actions.apply(connection, action, uri),
  };
  context.subscriptions.push(
    log,
    previews,
    connection,
    explanations,
    statusBar,
    ...Object.entries(commands).map(([name, run]) => vscode.commands.registerCommand(name, run)),
    connection.onDidChange(({ kind }) => {
      void vscode.commands.executeCommand("setContext", "pillion.connected", kind === "connected");
    }),
    vscode.workspace.onDidChangeConfiguration((event) => {
      const mayHelp = connection.state.kind === "error";
      if (mayHelp && event.affectsConfiguration("pillion.path")) connection.retry();
    }),
  );
  void connection.run();
}

async function openDashboard(connection: Connection): Promise<void> {
  const client = connection.require();
  if (client === undefined) return;
  try {
    const { url } = await client.sendRequest<StatusResult>("pillion/status");
    if (url === null) return;
    // Where the daemon runs on another machine the editor forwards the port.
    const outside = await vscode.env.asExternalUri(vscode.Uri.parse(url));
    await vscode.env.openExternal(outside);
  } catch (error) {
    tell(error);
  }
}
