/** Lines `start` to `end` (the one behind the last) of one text stand for others of another. */
export interface LineHunk {
  readonly start: number;
  readonly end: number;
  readonly otherStart: number;
  readonly otherEnd: number;
}

/** Cells of the table below; above it the lines that differ are one hunk. */
const LARGEST_TABLE = 4_000_000;

/** Lines with their ends; the last one may have none. */
export function splitLines(text: string): string[] {
  return text.split(/(?<=\r\n|\n|\r(?!\n))/);
}

/** What differs between two texts, in order and apart from each other, by longest common lines. */
export function lineHunks(before: readonly string[], after: readonly string[]): LineHunk[] {
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head++;
  let tail = 0;
  const most = Math.min(before.length, after.length) - head;
  while (tail < most && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail++;
  const rows = before.slice(head, before.length - tail);
  const columns = after.slice(head, after.length - tail);
  if (rows.length === 0 && columns.length === 0) return [];
  if (rows.length * columns.length > LARGEST_TABLE || !rows.length || !columns.length) {
    const [end, otherEnd] = [head + rows.length, head + columns.length];
    return [{ start: head, end, otherStart: head, otherEnd }];
  }
  return walk(rows, columns, commonLengths(rows, columns), head);
}

/** At [row][column] the length of the longest common subsequence of what is from there on. */
function commonLengths(rows: readonly string[], columns: readonly string[]): Uint32Array[] {
  const table = Array.from({ length: rows.length + 1 }, () => new Uint32Array(columns.length + 1));
  for (let row = rows.length - 1; row >= 0; row--) {
    const here = table[row]!;
    const below = table[row + 1]!;
    for (let column = columns.length - 1; column >= 0; column--) {
      here[column] =
        rows[row] === columns[column]
          ? below[column + 1]! + 1
          : Math.max(below[column]!, here[column + 1]!);
    }
  }
  return table;
}

function walk(
  rows: readonly string[],
  columns: readonly string[],
  common: readonly Uint32Array[],
  offset: number,
): LineHunk[] {
  const hunks: LineHunk[] = [];
  let row = 0;
  let column = 0;
  while (row < rows.length || column < columns.length) {
    const [start, otherStart] = [row, column];
    while (
      (row < rows.length || column < columns.length) &&
      !(row < rows.length && column < columns.length && rows[row] === columns[column])
    ) {
      const down = row < rows.length ? common[row + 1]![column]! : -1;
      const right = column < columns.length ? common[row]![column + 1]! : -1;
      if (down >= right) row++;
      else column++;
    }
    if (row > start || column > otherStart) {
      hunks.push({
        start: start + offset,
        end: row + offset,
        otherStart: otherStart + offset,
        otherEnd: column + offset,
      });
    }
    while (row < rows.length && column < columns.length && rows[row] === columns[column]) {
      row++;
      column++;
    }
  }
  return hunks;
}

/** The hunk that the other text's `line` is in or next to; the next one below it; or the last. */
export function hunkAt(hunks: readonly LineHunk[], line: number): LineHunk | undefined {
  // Where lines were only removed nothing is left to stand on, so the line behind them counts.
  const reaches = (hunk: LineHunk): boolean => line < Math.max(hunk.otherEnd, hunk.otherStart + 1);
  return hunks.find(reaches) ?? hunks.at(-1);
}
