"""The wire format. `worker_pb2.py` is generated from `worker.proto` (see CONTRIBUTING.md) with a compiler old enough for every runtime."""

SERVICE = "enginebay.worker.v1.Worker"
