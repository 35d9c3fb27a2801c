"""Restore random weights after a sleep that discarded them: vLLM reloads weights from files only, and a shape has none.

vLLM mixes this into its worker (`worker_extension_cls`), where `collective_rpc` finds the two methods.
"""

from __future__ import annotations

from typing import Any

_SMALL = 2**20  # bytes: norms and scales of quantized weights, which loading post-processes


class DummyWeights:
    """Creates what vLLM's dummy loader creates, from the same seeds. vLLM itself keeps buffers over such a sleep."""

    model_runner: Any

    def keep_small_weights(self) -> None:
        """Copy small weights to main memory. Call it before the sleep."""
        parameters = self.model_runner.get_model().named_parameters()
        small = ((name, weight) for name, weight in parameters if weight.numel() * weight.element_size() <= _SMALL)
        self._small = {name: weight.data.to("cpu", copy=True) for name, weight in small}

    def fill_weights(self) -> None:
        """Fill the weights. Call it once their memory is mapped again."""
        import torch
        from vllm.model_executor.model_loader.weight_utils import initialize_single_dummy_weight

        with torch.inference_mode():
            for name, weight in self.model_runner.get_model().named_parameters():
                if name in self._small:
                    weight.data.copy_(self._small[name])
                else:
                    initialize_single_dummy_weight(weight)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
