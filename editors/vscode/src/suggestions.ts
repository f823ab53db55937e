import * as vscode from "vscode";
import type { Middleware } from "vscode-languageclient/node";
import { Pace } from "./pace";
import { settings } from "./settings";

type Provide = NonNullable<Middleware["provideInlineCompletionItems"]>;

/** Decides when a suggestion is asked for. What is suggested is the daemon's matter. */
export class Suggestions {
  private readonly pace = new Pace();

  readonly provide: Provide = async (document, position, context, token, next) => {
    // What is asked for by hand is given in any case, and at once.
    if (context.triggerKind === vscode.InlineCompletionTriggerKind.Automatic) {
      if (!settings.automatic(document)) return undefined;
      if (!(await pause(this.pace.delay(settings.debounceMs()), token))) return undefined;
    }
    const began = performance.now();
    const found = await next(document, position, context, token);
    // Null is also what the daemon answers at once where it has nothing to compute.
    if (found != null && !token.isCancellationRequested) {
      this.pace.measured(performance.now() - began);
    }
    return found;
  };
}

/** Wait; false where the editor lost interest meanwhile. */
function pause(ms: number, token: vscode.CancellationToken): Promise<boolean> {
  if (token.isCancellationRequested || ms <= 0) {
    return Promise.resolve(!token.isCancellationRequested);
  }
  return new Promise((resolve) => {
    const timer = setTimeout(() => {
      subscription.dispose();
      resolve(true);
    }, ms);
    const subscription = token.onCancellationRequested(() => {
      clearTimeout(timer);
      subscription.dispose();
      resolve(false);
    });
  });
}
