import assert from "node:assert/strict";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { test } from "node:test";
import { findExecutable, NotInstalled } from "../src/executable";

function folder(program?: string): string {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), "pillion-test-"));
  if (program !== undefined)
    fs.writeFileSync(path.join(made, program), "#!/bin/sh\n", { mode: 0o755 });
  return made;
}

test("the first one in PATH is taken", () => {
  const [empty, first, second] = [folder(), folder("pillion"), folder("pillion")];
  assert.equal(findExecutable("", [empty, first, second].join(":")), path.join(first, "pillion"));
});

test("what a workspace brings along is never run", () => {
  const [workspace, installed] = [folder("pillion"), folder("pillion")];
  const found = findExecutable("", ["", ".", workspace, installed].join(":"), [workspace]);
  assert.equal(found, path.join(installed, "pillion"));
  assert.throws(() => findExecutable("", path.join(workspace, "bin"), [workspace]), NotInstalled);
});

test("a setting is an absolute path to a program", () => {
  const home = folder("pillion");
  assert.equal(findExecutable("~/pillion", "", [], home), path.join(home, "pillion"));
  assert.throws(() => findExecutable("bin/pillion", home), /no absolute path/);
  assert.throws(() => findExecutable(home, ""), /no program/);
  assert.throws(() => findExecutable(path.join(home, "absent"), home), /no program/);
});

test("a file that may not be run is not the command", () => {
  const place = folder();
  fs.writeFileSync(path.join(place, "pillion"), "", { mode: 0o644 });
  assert.throws(() => findExecutable("", place), NotInstalled);
});
