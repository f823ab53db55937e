/**
 * How long to wait for the next key before asking for a suggestion.
 *
 * Asking at each key wastes the model's time on text that is gone a moment later; waiting costs the
 * same moment at each pause. So the wait follows what an answer takes: a model that answers within a
 * few milliseconds is asked at once.
 */
export class Pace {
  private readonly recent: number[] = [];

  /** An answer came after that many milliseconds. */
  measured(ms: number): void {
    this.recent.push(ms);
    if (this.recent.length > KEPT) this.recent.shift();
  }

  /** Milliseconds to wait. fixed: what the user set; null leaves it to what was measured. */
  delay(fixed: number | null): number {
    if (fixed !== null) return Math.max(fixed, 0);
    // Answers that need no model are instant and say nothing of one that does: look at slow ones.
    const sorted = [...this.recent].sort((a, b) => a - b);
    const slow = sorted[Math.floor(sorted.length * 0.75)];
    return slow === undefined ? UNMEASURED_MS : Math.min(Math.round(slow / 3), LONGEST_MS);
  }
}

const KEPT = 16;
const UNMEASURED_MS = 40;
const LONGEST_MS = 200;
