import { execFile } from "node:child_process";
import * as fs from "node:fs";
import * as net from "node:net";
import * as os from "node:os";
import { setTimeout } from "node:timers/promises";

/** The daemon could not be started or reached; the message is what it said. */
export class DaemonFailed extends Error {}

/** Nobody listens where the daemon was said to be, or no longer: it may be back when asked again. */
export class Gone extends DaemonFailed {}

// `pillion serve --detach` itself gives up after 60 s.
const COMMAND_MS = 90_000;
const CONNECT_MS = 10_000;
const CLEAN_END_MS = 2_000;

/**
 * The socket of the running daemon, or null where none runs and none may be started.
 *
 * @throws DaemonFailed
 */
export async function findSocket(executable: string, mayStart: boolean): Promise<string | null> {
  const verb = mayStart ? ["serve", "--detach", "--json"] : ["status", "--json"];
  const { stdout, stderr, failed } = await run(executable, verb);
  // `serve` prints an object a line, `status` one over many lines.
  const socket = socketOf(mayStart ? (stdout.trim().split("\n").at(-1) ?? "") : stdout);
  if (socket !== null) return socket;
  // `pillion status` exits with 1 and says so where nothing runs.
  if (!mayStart && stdout.includes('"not running"')) return null;
  throw new DaemonFailed(lastWords(stderr) || failed || `${executable} gave no socket`);
}

function socketOf(line: string): string | null {
  try {
    const said: unknown = JSON.parse(line);
    const socket = said !== null && typeof said === "object" && "socket" in said && said.socket;
    return typeof socket === "string" && socket !== "" ? socket : null;
  } catch {
    return null;
  }
}

/** What an error of the command says, without the words around it. */
export function lastWords(stderr: string): string {
  const lines = stderr
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
  const error = [...lines].reverse().find((line) => /\berror: /.test(line));
  return (error ?? lines.at(-1) ?? "").replace(/^.*?\berror: /, "");
}

function run(
  executable: string,
  args: string[],
): Promise<{ stdout: string; stderr: string; failed: string }> {
  return new Promise((resolve) => {
    // Away from the workspace, which may hold what Python would take for its own.
    const options = { cwd: os.homedir(), timeout: COMMAND_MS, maxBuffer: 1 << 20 };
    execFile(executable, args, options, (error, stdout, stderr) => {
      resolve({ stdout, stderr, failed: error?.message ?? "" });
    });
  });
}

/** @throws Gone where nobody listens. */
export function connect(socketPath: string): Promise<net.Socket> {
  return new Promise((resolve, reject) => {
    const socket = net.connect(socketPath);
    const fail = (reason: string): void => {
      socket.destroy();
      reject(new Gone(`the daemon does not answer at ${socketPath}: ${reason}`));
    };
    socket.setTimeout(CONNECT_MS, () => {
      fail("it took too long");
    });
    socket.once("connect", () => {
      socket.setTimeout(0);
      socket.removeAllListeners("error");
      resolve(socket);
    });
    socket.once("error", (error) => {
      fail(error.message);
    });
  });
}

/** Whether somebody listens at a socket. */
export async function answers(socketPath: string): Promise<boolean> {
  try {
    (await connect(socketPath)).destroy();
    return true;
  } catch {
    return false;
  }
}

/**
 * Whether the daemon that closed its connections left its socket's file behind: it crashed. One that
 * ends cleanly removes the file right after it closed them.
 */
export async function crashed(socketPath: string): Promise<boolean> {
  const deadline = Date.now() + CLEAN_END_MS;
  while (fs.existsSync(socketPath)) {
    if (Date.now() > deadline) return true;
    await setTimeout(50);
  }
  return false;
}
