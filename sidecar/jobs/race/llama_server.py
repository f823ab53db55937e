"""llama.cpp's own HTTP server out of PyPI ``xllamacpp``, run as a script by that package's Python,
with nothing of Pillion's: ``llama_server.py MODEL PORT THREADS CONTEXT [N-GRAM TYPE]``."""

import sys
import threading

# Installed where this runs, not where types are checked.
import xllamacpp  # type: ignore[import-not-found]


def main() -> None:
    model, port, threads, context, *types = sys.argv[1:]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = int(port)
    parameters.n_ctx = int(context)
    parameters.n_parallel = 1
    parameters.n_gpu_layers = 0
    for cpu in (parameters.cpuparams, parameters.cpuparams_batch):
        cpu.n_threads = int(threads)
        # Waiting threads do not spin: there are others on this machine.
        cpu.poll = 0
    if types:
        kinds = xllamacpp.common_speculative_type
        parameters.speculative.types = [
            getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{name.upper()}") for name in types
        ]
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
