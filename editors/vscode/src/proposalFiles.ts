import * as vscode from "vscode";

export const SCHEME = "pillion-edit";

/** Suggested texts as files in memory: the editor can open, change and save them. */
export class ProposalFiles implements vscode.FileSystemProvider {
  private readonly contents = new Map<string, { data: Uint8Array; mtime: number }>();
  private readonly changes = new vscode.EventEmitter<vscode.FileChangeEvent[]>();
  readonly onDidChangeFile = this.changes.event;
  private clock = 0;

  put(uri: vscode.Uri, text: string): void {
    this.writeFile(uri, new TextEncoder().encode(text));
  }

  remove(uri: vscode.Uri): void {
    this.contents.delete(uri.toString());
  }

  stat(uri: vscode.Uri): vscode.FileStat {
    const { data, mtime } = this.found(uri);
    return { type: vscode.FileType.File, ctime: 0, mtime, size: data.length };
  }

  readFile(uri: vscode.Uri): Uint8Array {
    return this.found(uri).data;
  }

  writeFile(uri: vscode.Uri, data: Uint8Array): void {
    this.contents.set(uri.toString(), { data, mtime: ++this.clock });
  }

  private found(uri: vscode.Uri): { data: Uint8Array; mtime: number } {
    const content = this.contents.get(uri.toString());
    if (content === undefined) throw vscode.FileSystemError.FileNotFound(uri);
    return content;
  }

  watch(): vscode.Disposable {
    return new vscode.Disposable(() => undefined);
  }

  readDirectory(): [string, vscode.FileType][] {
    return [];
  }

  createDirectory(): void {
    throw vscode.FileSystemError.NoPermissions();
  }

  delete(): void {
    throw vscode.FileSystemError.NoPermissions();
  }

  rename(): void {
    throw vscode.FileSystemError.NoPermissions();
  }
}
