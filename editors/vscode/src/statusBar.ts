import * as vscode from "vscode";
import type { Connection } from "./connection";
import { settings } from "./settings";
import { viewOf, type View } from "./statusView";

/** The entry in the status bar, and the menu behind it. */
export class StatusBar implements vscode.Disposable {
  private readonly item: vscode.StatusBarItem;
  private readonly subscriptions: vscode.Disposable[];

  constructor(private readonly connection: Connection) {
    this.item = vscode.window.createStatusBarItem("pillion", vscode.StatusBarAlignment.Right, 100);
    this.item.name = "Pillion";
    this.item.command = "pillion.showMenu";
    const show = (): void => {
      this.show();
    };
    this.subscriptions = [
      this.item,
      connection.onDidChange(show),
      vscode.window.onDidChangeActiveTextEditor(show),
      vscode.workspace.onDidChangeConfiguration(show),
    ];
    this.show();
    this.item.show();
  }

  dispose(): void {
    vscode.Disposable.from(...this.subscriptions).dispose();
  }

  async menu(): Promise<void> {
    const picked = await vscode.window.showQuickPick(this.entries(), {
      title: "Pillion",
      placeHolder: "What to do",
    });
    if (picked?.command !== undefined) await vscode.commands.executeCommand(...picked.command);
  }

  private view(): View {
    return viewOf(this.connection.state, settings.off(vscode.window.activeTextEditor?.document));
  }

  private show(): void {
    const { text, facts, severity } = this.view();
    this.item.text = text;
    const tooltip = new vscode.MarkdownString();
    for (const fact of facts) tooltip.appendText(`${fact}\n\n`);
    this.item.tooltip = tooltip;
    this.item.backgroundColor =
      severity === "none"
        ? undefined
        : new vscode.ThemeColor(`statusBarItem.${severity}Background`);
  }

  private entries(): Entry[] {
    const language = vscode.window.activeTextEditor?.document.languageId;
    const up = this.connection.state.kind === "connected";
    const on = vscode.workspace.getConfiguration("pillion").get("enable", true);
    const here = vscode.workspace
      .getConfiguration("pillion", vscode.window.activeTextEditor?.document)
      .get("enable", true);
    const { facts } = this.view();
    return [
      { label: facts[0] ?? "", detail: facts.slice(1).join(" · "), command: ["pillion.showLog"] },
      heading("Suggestions"),
      entry(on ? "circle-slash" : "check", on ? "Turn Off" : "Turn On", "pillion.toggle"),
      ...(language === undefined
        ? []
        : [
            entry(
              here ? "circle-slash" : "check",
              `Turn ${here ? "Off" : "On"} for ${language}`,
              "pillion.toggleLanguage",
            ),
          ]),
      entry("lightbulb", "Suggest at the Cursor", "pillion.trigger"),
      heading("Code"),
      entry("edit", "Edit Selection...", "pillion.editSelection"),
      entry("question", "Explain", "pillion.explain"),
      entry("replace-all", "Refactor Workspace...", "pillion.refactorWorkspace"),
      heading("Daemon"),
      ...(up
        ? [
            entry("dashboard", "Open Dashboard", "pillion.openDashboard"),
            entry("debug-restart", "Restart", "pillion.restart"),
            entry("debug-stop", "Stop", "pillion.stop"),
          ]
        : [entry("play", "Connect, or Start It", "pillion.start")]),
      entry("output", "Show Log", "pillion.showLog"),
      entry("gear", "Settings", "workbench.action.openSettings", "@ext:pillion.pillion"),
    ];
  }
}

interface Entry extends vscode.QuickPickItem {
  readonly command?: [string, ...unknown[]];
}

function entry(icon: string, label: string, ...command: [string, ...unknown[]]): Entry {
  return { label: `$(${icon}) ${label}`, command };
}

function heading(label: string): Entry {
  return { label, kind: vscode.QuickPickItemKind.Separator };
}
