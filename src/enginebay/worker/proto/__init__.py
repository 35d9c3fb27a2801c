"""The wire format. `worker_pb2.py` is generated from `worker.proto` with a compiler old enough for all runtimes (see CONTRIBUTING.md)."""

SERVICE = "enginebay.worker.v1.Worker"
