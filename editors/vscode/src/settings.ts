import * as vscode from "vscode";

/** Read anew at each use, so that a change counts at once. */
export const settings = {
  path: (): string => all().get("path", ""),
  startDaemon: (): boolean => all().get("startDaemon", true),
  debounceMs: (): number | null => all().get<number | null>("debounceMs", null),

  /** Whether suggestions come by themselves in a document. */
  automatic: (document: vscode.TextDocument): boolean =>
    enabled(document) && of(document).get("triggerMode", "automatic") === "automatic",

  /** Why none come by themselves, in words; "" where they do. */
  off: (document: vscode.TextDocument | undefined): string => {
    if (!vscode.workspace.getConfiguration("editor", document).get("inlineSuggest.enabled", true)) {
      return "suggestions are off in the editor (editor.inlineSuggest.enabled)";
    }
    if (!all().get("enable", true)) return "suggestions are off (pillion.enable)";
    if (document === undefined) return "";
    if (!enabled(document)) return `suggestions are off for ${document.languageId}`;
    return settings.automatic(document) ? "" : "suggestions come only when asked for";
  },

  /** Turn suggestions on or off, everywhere or for one language. */
  toggle: async (languageId?: string): Promise<boolean> => {
    const scope = languageId === undefined ? undefined : { languageId };
    const configuration = vscode.workspace.getConfiguration("pillion", scope);
    const wanted = !configuration.get("enable", true);
    const { Global } = vscode.ConfigurationTarget;
    await configuration.update("enable", wanted, Global, languageId !== undefined);
    return wanted;
  },
};

function all(): vscode.WorkspaceConfiguration {
  return vscode.workspace.getConfiguration("pillion");
}

function of(document: vscode.TextDocument): vscode.WorkspaceConfiguration {
  return vscode.workspace.getConfiguration("pillion", document);
}

function enabled(document: vscode.TextDocument): boolean {
  return of(document).get("enable", true);
}
