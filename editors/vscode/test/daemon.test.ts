import assert from "node:assert/strict";
import * as fs from "node:fs";
import * as net from "node:net";
import * as os from "node:os";
import * as path from "node:path";
import { test } from "node:test";
import { answers, connect, crashed, DaemonFailed, findSocket, lastWords } from "../src/daemon";

const place = fs.mkdtempSync(path.join(os.tmpdir(), "pln-"));

function program(name: string, script: string): string {
  const file = path.join(place, name);
  fs.writeFileSync(file, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  return file;
}

test("the daemon is started from the home folder, not from the workspace", async () => {
  const file = program("where", `echo "{\\"socket\\": \\"$PWD\\", \\"asked\\": \\"$*\\"}"`);
  assert.equal(
    fs.realpathSync((await findSocket(file, true)) ?? ""),
    fs.realpathSync(os.homedir()),
  );
});

test("without leave to start one it is only looked for", async () => {
  const running = program(
    "up",
    `[ "$1" = status ] && printf '{\\n  "socket": "/run/x.sock"\\n}\\n'`,
  );
  assert.equal(await findSocket(running, false), "/run/x.sock");
  const down = program("down", `printf '{\\n  "state": "not running"\\n}\\n'; exit 1`);
  assert.equal(await findSocket(down, false), null);
});

test("what a failed start said is the error", async () => {
  const file = program("bad", `echo 'pillion: error: no such model: nope' >&2; exit 1`);
  await assert.rejects(findSocket(file, true), new DaemonFailed("no such model: nope"));
  const silent = program("silent", "exit 0");
  await assert.rejects(findSocket(silent, true), /gave no socket/);
});

test("the last words are the error, whatever stands around it", () => {
  assert.equal(
    lastWords("2026-11-30 error: first\nerror: the port is taken\nbye\n"),
    "the port is taken",
  );
  assert.equal(lastWords("\nsomething else\n\n"), "something else");
  assert.equal(lastWords(""), "");
});

test("a socket that nobody listens on is a crash, one that is gone was closed", async () => {
  const file = path.join(place, "s");
  await assert.rejects(connect(file), DaemonFailed);
  const server = net.createServer().listen(file);
  await new Promise((resolve) => server.once("listening", resolve));
  assert.equal(await answers(file), true);
  await new Promise((resolve) => server.close(resolve));
  assert.equal(await answers(file), false);
  assert.equal(await crashed(file), false);
  fs.writeFileSync(file, "");
  assert.equal(await crashed(file), true);
});
