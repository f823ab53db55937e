import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";

/** The command is not where it was looked for; the message says where that was. */
export class NotInstalled extends Error {}

/**
 * The absolute path of the `pillion` command.
 *
 * A relative entry of PATH, or one inside a folder that is being worked on, is passed over: what a
 * repository brings along must not run because the repository was opened.
 */
export function findExecutable(
  setting: string,
  searchPath: string | undefined,
  folders: readonly string[] = [],
  home: string = os.homedir(),
): string {
  if (setting.trim() !== "") return fromSetting(setting.trim(), home);
  for (const entry of (searchPath ?? "").split(path.delimiter)) {
    if (!path.isAbsolute(entry) || folders.some((folder) => isInside(entry, folder))) continue;
    const file = path.join(entry, "pillion");
    if (isExecutable(file)) return file;
  }
  throw new NotInstalled("the pillion command is not in PATH");
}

function fromSetting(setting: string, home: string): string {
  const file = setting.replace(/^~(?=\/|$)/, home);
  if (!path.isAbsolute(file)) {
    throw new NotInstalled(`pillion.path is ${setting}, which is no absolute path`);
  }
  if (!isExecutable(file)) {
    throw new NotInstalled(`pillion.path is ${setting}, which is no program that can be run`);
  }
  return file;
}

function isExecutable(file: string): boolean {
  try {
    fs.accessSync(file, fs.constants.X_OK);
    return fs.statSync(file).isFile();
  } catch {
    return false;
  }
}

function isInside(file: string, folder: string): boolean {
  const relative = path.relative(folder, file);
  return relative === "" || (!relative.startsWith("..") && !path.isAbsolute(relative));
}
