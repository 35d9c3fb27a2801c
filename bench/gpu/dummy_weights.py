"""Random weights again, after a sleep that threw them away: vLLM reads weights back from files only, and a shape has none.

vLLM mixes this into its worker (`worker_extension_cls`), where `collective_rpc` finds the two methods.
"""

from __future__ import annotations

from typing import Any

_SMALL = 2**20  # bytes: norms and the scales of quantised weights, which loading has worked on


class DummyWeights:
    """What vLLM's own dummy loader makes, from the same seeds. Buffers it keeps over such a sleep by itself."""

    model_runner: Any

    def keep_small_weights(self) -> None:
        """In main memory. To be called before the sleep."""
        parameters = self.model_runner.get_model().named_parameters()
        small = ((name, one) for name, one in parameters if one.numel() * one.element_size() <= _SMALL)
        self._small = {name: one.data.to("cpu", copy=True) for name, one in small}

    def fill_weights(self) -> None:
        """To be called when the weights' memory is there again."""
        import torch
        from vllm.model_executor.model_loader.weight_utils import initialize_single_dummy_weight

        with torch.inference_mode():
            for name, one in self.model_runner.get_model().named_parameters():
                if name in self._small:
                    one.data.copy_(self._small[name])
                else:
                    initialize_single_dummy_weight(one)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
