/** Lets one waiter wait for a time, or for a word. */
export class Wakeup {
  private waiter: ((woken: boolean) => void) | undefined;

  /** True once `wake` is called, false when the time is over first. */
  wait(ms?: number): Promise<boolean> {
    return new Promise((resolve) => {
      const timer = ms === undefined ? undefined : setTimeout(() => this.waiter?.(false), ms);
      this.waiter = (woken) => {
        clearTimeout(timer);
        this.waiter = undefined;
        resolve(woken);
      };
    });
  }

  /** Nobody need be waiting. */
  wake(): void {
    this.waiter?.(true);
  }
}
