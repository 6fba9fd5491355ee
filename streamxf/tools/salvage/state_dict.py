"""`StateDictFiller`: from a checkpoint into a state dict, as ``dcp.load`` fills it; it alone needs torch."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

from streamxf.checkpoint.checkpoint import as_torch
from streamxf.errors import UnsupportedError
from streamxf.format.items import Item, TensorItem
from streamxf.tools.salvage.fill import Filler, Noted
from streamxf.tools.salvage.result import Salvaged
from streamxf.torch_private import create_chunk_list, set_element


class StateDictFiller(Filler):
    """Fills what is there already."""

    def into(self, state_dict: dict[str, Any]) -> Salvaged:
        """What `state_dict` asks for, in place, as ``dcp.load`` does it; the rest keeps its values."""
        plain = {name: item.state_dict() if isinstance(item, Stateful) else item for name, item in state_dict.items()}
        planner = DefaultLoadPlanner(allow_partial_load=True)
        planner.set_up_planner(plain, Metadata({}), True)
        items = self._checkpoint.stored
        missing = planner.state_dict.keys() - items.keys() - {entry.item for entry in self.damaged}

        def load(item: Item) -> None:
            if isinstance(item, TensorItem):
                self._load_into(item, planner.state_dict[item.name], planner)
            else:
                planner.state_dict[item.name] = self._loaded(item)
                set_element(plain, planner.mappings[item.name], planner.state_dict[item.name])

        loaded = self._each([name for name in planner.state_dict if name in items], load)
        for name, value in list(state_dict.items()):
            if isinstance(value, Stateful):
                value.load_state_dict(plain[name])
            else:
                state_dict[name] = plain[name]
        return self._result(state_dict, loaded, filter(missing.__contains__, planner.state_dict))

    def _load_into(self, item: TensorItem, target: Any, planner: DefaultLoadPlanner) -> None:
        if isinstance(target, DTensor) and target.device_mesh.get_coordinate() is None:
            raise Noted  # it lies on other ranks
        try:
            boxes = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in create_chunk_list(target)]
        except ValueError:
            raise UnsupportedError(f"the checkpoint has a tensor, the state dict a {type(target).__name__}") from None
        if item.shape != tuple(target.size()):
            raise UnsupportedError(
                f"the checkpoint has a tensor of shape {item.shape}, the state dict one of {tuple(target.size())}"
            )
        shards = [planner.lookup_tensor(MetadataIndex(item.name, torch.Size(at))).detach() for at, _ in boxes]
        for shard, (part, places) in zip(shards, self._boxes(item, boxes), strict=True):
            for cuts in places:
                shard[cuts].copy_(as_torch(part, item.dtype)[cuts])
