// The program that a sanitizer watches: reads a dispatch and its buffers from a file, runs the
// kernel, writes the buffers back. Each buffer is a block of exactly its size.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime.h"

extern "C" void emulator_entry(void** buffers, const emulator::LaneContext* context);

int main(int, char** arguments) {
  FILE* file = fopen(arguments[1], "rb");
  emulator::Dispatch dispatch;
  uint64_t count = 0;
  if (!file || fread(&dispatch, sizeof dispatch, 1, file) != 1 || fread(&count, 8, 1, file) != 1)
    return 9;
  std::vector<void*> buffers(count);
  std::vector<uint64_t> sizes(count);
  for (uint64_t i = 0; i < count; i++) {
    if (fread(&sizes[i], 8, 1, file) != 1) return 9;
    buffers[i] = malloc(sizes[i]);
    if (sizes[i] && fread(buffers[i], 1, sizes[i], file) != sizes[i]) return 9;
  }
  fclose(file);
  char error[4096] = "";
  emulator::Counts counts;
  if (emulator_run(emulator_entry, buffers.data(), &dispatch, error, sizeof error, &counts)) {
    fprintf(stderr, "emulator: %s\n", error);
    return 3;
  }
  file = fopen(arguments[2], "wb");
  fwrite(&counts, sizeof counts, 1, file);
  for (uint64_t i = 0; i < count; i++) fwrite(buffers[i], 1, sizes[i], file);
  fclose(file);
  for (void* buffer : buffers) free(buffer);
  return 0;
}
