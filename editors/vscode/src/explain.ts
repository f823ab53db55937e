import * as vscode from "vscode";
import { ProgressType } from "vscode-languageclient/node";
import type { Connection } from "./connection";
import { documentOf, rangeOf } from "./edit";
import { tell } from "./failures";
import { newToken, withProgress } from "./progress";
import type { ExplainResult, Place } from "./protocol";

const SCHEME = "pillion-explanation";

/** Explanations, shown as they are written in a Markdown preview beside the code. */
export class Explanations implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changed.event;
  private readonly texts = new Map<string, string>();
  private readonly registration: vscode.Disposable;
  private count = 0;

  constructor(private readonly connection: Connection) {
    this.registration = vscode.workspace.registerTextDocumentContentProvider(SCHEME, this);
  }

  dispose(): void {
    this.registration.dispose();
  }

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.toString()) ?? "";
  }

  async run(place?: Place): Promise<void> {
    const document = await documentOf(place);
    const client = document && this.connection.require();
    if (document === undefined || client === undefined) return;
    const range = rangeOf(client, place);
    const uri = vscode.Uri.from({
      scheme: SCHEME,
      path: `/${String(++this.count)}/Explanation.md`,
    });
    const partialResultToken = newToken();
    const heading = headingOf(document, range);
    let written = "";
    const write = (markdown: string): void => {
      this.texts.set(uri.toString(), `${heading}\n\n${markdown}\n`);
      this.changed.fire(uri);
    };
    let opened: Thenable<unknown> | undefined;
    const pieces = client.onProgress(
      new ProgressType<{ markdown: string }>(),
      partialResultToken,
      ({ markdown }) => {
        written += markdown;
        write(written);
        opened ??= vscode.commands.executeCommand("markdown.showPreviewToSide", uri);
      },
    );
    try {
      const result = await withProgress<ExplainResult>(
        client,
        "Pillion: explaining",
        "pillion/explain",
        {
          ...place,
          uri: client.code2ProtocolConverter.asUri(document.uri),
          version: document.version,
          range: client.code2ProtocolConverter.asRange(range),
          partialResultToken,
        },
      );
      if (result === undefined) return;
      write(result.markdown + (result.finish_reason === "length" ? "\n\n*(cut off)*" : ""));
      opened ??= vscode.commands.executeCommand("markdown.showPreviewToSide", uri);
      await opened;
    } catch (error) {
      tell(error);
    } finally {
      pieces.dispose();
    }
  }
}

function headingOf(document: vscode.TextDocument, range: vscode.Range): string {
  const name = vscode.workspace.asRelativePath(document.uri);
  return `*${name}, line ${String(range.start.line + 1)}*`;
}
