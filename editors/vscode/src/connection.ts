import * as vscode from "vscode";
import {
  CloseAction,
  ErrorAction,
  LanguageClient,
  RevealOutputChannelOn,
  type LanguageClientOptions,
  type Middleware,
} from "vscode-languageclient/node";
import { answers, connect, crashed, findSocket, Gone } from "./daemon";
import { findExecutable, NotInstalled } from "./executable";
import type { StatusResult, Summary } from "./protocol";
import { settings } from "./settings";
import { type State } from "./statusView";
import { Wakeup } from "./wakeup";

/** Starts after crashes within this time; one more is an error that the user has to see. */
const CRASHES = 3;
const CRASH_WINDOW_MS = 180_000;
const LOOK_AGAIN_MS = 1_000;
/** Between two runs of `pillion status`, while it is not known where a socket would be. */
const ASK_AGAIN_MS = 10_000;

const DOCUMENTS = ["file", "untitled", "vscode-notebook-cell"].map((scheme) => ({ scheme }));
/** Commands at the end of code actions that this extension handles. */
const COMMANDS = ["pillion.editSelection", "pillion.explain"];

/**
 * The window's line to the daemon: finds or starts it, and finds it again when it is gone.
 *
 * A daemon that crashed (its socket's file is still there) is started again. One that was stopped
 * stays stopped; the window joins the next one that somebody starts.
 */
export class Connection implements vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<State>();
  readonly onDidChange = this.changed.event;
  private current: State = { kind: "starting" };
  private live: LanguageClient | undefined;
  private socketPath: string | null = null;
  private readonly wakeup = new Wakeup();
  private readonly crashes: number[] = [];
  private restarting = false;
  private disposed = false;

  constructor(
    private readonly log: vscode.LogOutputChannel,
    private readonly middleware: Middleware,
  ) {}

  get state(): State {
    return this.current;
  }

  /** The client of a connection that is up. */
  get client(): LanguageClient | undefined {
    return this.current.kind === "connected" ? this.live : undefined;
  }

  /** The client, or after an explanation to the user undefined. */
  require(): LanguageClient | undefined {
    if (this.client === undefined) void this.explain();
    return this.client;
  }

  private async explain(): Promise<void> {
    if (this.current.kind === "starting") {
      void vscode.window.showInformationMessage("Pillion: the daemon is starting.");
      return;
    }
    const why = this.current.kind === "error" ? this.current.message : "the daemon does not run";
    const start = "Start It";
    if ((await vscode.window.showWarningMessage(`Pillion: ${why}.`, start)) === start) this.retry();
  }

  /** Keep connected until `dispose`. */
  async run(): Promise<void> {
    let mayStart = settings.startDaemon();
    while (!this.disposed) {
      try {
        if ((await this.session(mayStart)) && (await this.shouldStartAgain())) {
          mayStart = true;
          continue;
        }
        this.become({ kind: "stopped" });
        mayStart = await this.daemonOrUser();
      } catch (error) {
        if (this.disposed) return;
        if (error instanceof Gone && this.mayBeTriedAgain()) {
          this.log.info(error.message);
          mayStart = settings.startDaemon();
          continue;
        }
        this.fail(error);
        await this.wakeup.wait();
        this.crashes.length = 0;
        mayStart = true;
      }
    }
  }

  /** Try now, and start a daemon where none runs: the user asked for it. */
  retry(): void {
    this.wakeup.wake();
  }

  /** Stop the daemon, for every client of it. again: and start one. */
  async shutDown(again = false): Promise<void> {
    if (again && this.client === undefined) {
      this.retry();
      return;
    }
    this.restarting = again;
    await this.require()?.sendRequest("pillion/shutdown");
  }

  dispose(): void {
    this.disposed = true;
    this.wakeup.wake();
    void this.live?.stop();
    this.changed.dispose();
  }

  /** One connection from start to end. False where no daemon runs and none may be started. */
  private async session(mayStart: boolean): Promise<boolean> {
    if (mayStart) this.become({ kind: "starting" });
    const folders = (vscode.workspace.workspaceFolders ?? []).map((folder) => folder.uri.fsPath);
    const executable = findExecutable(settings.path(), process.env["PATH"], folders);
    this.log.info(`using ${executable}`);
    const socketPath = await findSocket(executable, mayStart);
    if (socketPath === null) return false;
    this.socketPath = socketPath;
    const socket = await connect(socketPath);
    const over = new Promise<void>((resolve) => socket.once("close", resolve));
    const client = this.clientOf(() => Promise.resolve({ reader: socket, writer: socket }));
    this.live = client;
    try {
      await Promise.race([client.start(), over.then(gone)]);
      client.onNotification("pillion/didChangeStatus", (summary: Summary) => {
        this.become({ kind: "connected", summary });
      });
      const status: StatusResult = await client.sendRequest("pillion/status", { watch: true });
      this.become({ kind: "connected", summary: status.summary });
      this.log.info(`connected to the daemon at ${socketPath}`);
      await over;
      this.log.info("the daemon closed the connection");
    } finally {
      this.live = undefined;
      socket.destroy();
      // Throws where the client never came up or is down already; there is nothing to stop then.
      await client.dispose().catch(() => undefined);
    }
    return true;
  }

  private clientOf(
    transport: () => Promise<{ reader: NodeJS.ReadableStream; writer: NodeJS.WritableStream }>,
  ): LanguageClient {
    const options: LanguageClientOptions = {
      documentSelector: DOCUMENTS,
      initializationOptions: { commands: COMMANDS },
      outputChannel: this.log,
      revealOutputChannelOn: RevealOutputChannelOn.Never,
      initializationFailedHandler: () => false,
      // Connecting again is this class's matter.
      errorHandler: {
        error: () => ({ action: ErrorAction.Continue, handled: true }),
        closed: () => ({ action: CloseAction.DoNotRestart, handled: true }),
      },
      middleware: this.middleware,
    };
    const client = new LanguageClient("pillion", "Pillion", transport, options);
    // The client would register the server's commands as the editor's, whose own have these names.
    client.registerFeature({
      fillClientCapabilities: () => undefined,
      preInitialize: (capabilities) => {
        delete capabilities.executeCommandProvider;
      },
      initialize: () => undefined,
      getState: () => ({ kind: "static" }),
      clear: () => undefined,
    });
    return client;
  }

  /** After a connection was lost. Throws where the daemon crashes again and again. */
  private async shouldStartAgain(): Promise<boolean> {
    const [before, asked] = [this.current, this.restarting];
    this.restarting = false;
    this.become({ kind: "starting" });
    const crash = this.socketPath !== null && (await crashed(this.socketPath));
    if (asked) return true;
    if (before.kind === "connected" && before.summary.state === "error") {
      throw new Lost(before.summary.message, before.summary.action);
    }
    if (!crash) return false;
    if (!this.mayBeTriedAgain()) {
      throw new Lost("the daemon crashed several times", "look at the log, then start it again");
    }
    return settings.startDaemon();
  }

  /** Count a crash. False where there were too many of late. */
  private mayBeTriedAgain(): boolean {
    const now = Date.now();
    while (this.crashes[0] !== undefined && this.crashes[0] < now - CRASH_WINDOW_MS) {
      this.crashes.shift();
    }
    this.crashes.push(now);
    return this.crashes.length <= CRASHES;
  }

  /** Wait for a daemon that somebody else starts, or for the user to ask for one (true). */
  private async daemonOrUser(): Promise<boolean> {
    if (this.socketPath === null) return this.wakeup.wait(ASK_AGAIN_MS);
    while (!this.disposed) {
      if (await this.wakeup.wait(LOOK_AGAIN_MS)) return true;
      if (await answers(this.socketPath)) return false;
    }
    return false;
  }

  private fail(error: unknown): void {
    const message = error instanceof Error ? error.message : String(error);
    this.log.error(message);
    let action = "see the log; `pillion doctor` checks the machine and the settings";
    if (error instanceof NotInstalled) action = "install Pillion, or set pillion.path";
    if (error instanceof Lost) action = error.action || action;
    this.become({ kind: "error", message, action });
  }

  private become(state: State): void {
    if (this.disposed) return;
    this.current = state;
    this.changed.fire(state);
  }
}

function gone(): never {
  throw new Gone("the daemon closed the connection before it answered");
}

/** The daemon said itself why it is gone, or went too often. */
class Lost extends Error {
  constructor(
    message: string,
    readonly action: string,
  ) {
    super(message);
  }
}
