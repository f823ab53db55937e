import type { Summary } from "./protocol";

/** Where the connection is; what the daemon says of itself is in `summary`. */
export type State =
  | { readonly kind: "starting" }
  | { readonly kind: "stopped" }
  | { readonly kind: "error"; readonly message: string; readonly action: string }
  | { readonly kind: "connected"; readonly summary: Summary };

export interface View {
  readonly text: string;
  /** Lines of a tooltip, and the first rows of the menu. */
  readonly facts: readonly string[];
  readonly severity: "none" | "warning" | "error";
}

/** What the status bar shows. off: why there are no suggestions here although the model is ready. */
export function viewOf(state: State, off = ""): View {
  switch (state.kind) {
    case "starting":
      return { text: "$(sync~spin) Pillion: starting", facts: ["Connecting"], severity: "none" };
    case "stopped":
      return {
        text: "$(debug-disconnect) Pillion: stopped",
        facts: ["The daemon does not run; click to start it"],
        severity: "warning",
      };
    case "error":
      return failed(state.message, state.action);
    case "connected":
      if (state.summary.state === "stopped") return viewOf({ kind: "stopped" });
      return state.summary.state === "error"
        ? failed(state.summary.message, state.summary.action)
        : running(state.summary, off);
  }
}

function failed(message: string, action: string): View {
  const facts = [sentence(message), ...(action === "" ? [] : [sentence(action)])];
  return { text: "$(error) Pillion", facts, severity: "error" };
}

function running(summary: Summary, off: string): View {
  if (summary.state === "loading") {
    const percent = summary.percent === null ? "" : ` ${String(summary.percent)} %`;
    const facts = [sentence(summary.message || `loading ${summary.model}`)];
    return { text: `$(sync~spin) Pillion: loading${percent}`, facts, severity: "none" };
  }
  const icon =
    off !== "" ? "$(circle-slash)" : summary.state === "busy" ? "$(loading~spin)" : "$(zap)";
  const speed = summary.tok_s === null ? "" : ` ${count(summary.tok_s)} tok/s`;
  // "target-only" is a state of its own only while nobody waits, but it holds while somebody does.
  const plain = summary.target_only === "" ? "" : " (target-only)";
  return {
    text: `${icon} ${summary.model}${speed}${plain}`,
    facts: [
      `${summary.model} is ${summary.state === "busy" ? "busy" : "ready"}`,
      ...(off === "" ? [] : [sentence(off)]),
      ...(summary.target_only === "" ? [] : [`Target-only: ${summary.target_only}`]),
      ...numbers(summary),
    ],
    severity: "none",
  };
}

function numbers(summary: Summary): string[] {
  const found: string[] = [];
  if (summary.tok_s !== null) found.push(`${count(summary.tok_s)} tokens a second`);
  if (summary.surplus_ms !== null) {
    const ms = Math.abs(summary.surplus_ms).toFixed(1);
    const does = summary.surplus_ms < 0 ? "costs" : "saves";
    found.push(`Drafting ${does} ${ms} ms a token`);
  }
  if (summary.cache_hit_share !== null) {
    found.push(`${count(summary.cache_hit_share * 100)} % of prompts cached`);
  }
  return found;
}

function count(value: number): string {
  return value < 10 && value > 0 ? value.toFixed(1) : String(Math.round(value));
}

function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
