// Bundles the extension into dist/, or with --tests the unit tests into build/test/.
import { build } from "esbuild";
import { mkdirSync, readdirSync } from "node:fs";

mkdirSync("build", { recursive: true });
const common = {
  bundle: true,
  platform: "node",
  format: "cjs",
  target: "node20",
  logLevel: "warning",
};

if (process.argv.includes("--tests")) {
  const tests = readdirSync("test").filter((name) => name.endsWith(".test.ts"));
  await build({
    ...common,
    entryPoints: tests.map((name) => `test/${name}`),
    outdir: "build/test",
  });
} else {
  await build({
    ...common,
    entryPoints: ["src/extension.ts"],
    outfile: "dist/extension.js",
    external: ["vscode"],
    minify: true,
    // Stack traces in the log name our functions.
    keepNames: true,
  });
}
