"""RLinf's own checks of a config, on a cluster that exists on paper: nothing of Ray is started."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from unittest.mock import patch

import rlinf.config
from omegaconf import DictConfig
from rlinf.scheduler.cluster.config import ClusterConfig
from rlinf.scheduler.cluster.node import NodeGroupInfo, NodeInfo
from rlinf.scheduler.hardware import Accelerator, AcceleratorType, HardwareInfo, HardwareResource
from rlinf.utils.placement import HybridComponentPlacement


class PaperCluster:
    """What RLinf's placement asks of its cluster, for nodes with `gpus` accelerators each."""

    def __init__(self, cfg: DictConfig, *, gpus: int) -> None:
        config = ClusterConfig.from_dict_cfg(cfg)
        nodes = [_node(rank, config, gpus) for rank in range(config.num_nodes)]
        self._groups = {
            group.label: NodeGroupInfo(
                label=group.label,
                nodes=[node for node in nodes if node.node_rank in group.node_ranks],
                hardware_type=group.hardware_type,
                ignore_hardware=group.ignore_hardware,
            )
            for group in config.node_groups or ()
        }
        self._groups[NodeGroupInfo.DEFAULT_GROUP_LABEL] = NodeGroupInfo(
            label=NodeGroupInfo.DEFAULT_GROUP_LABEL, nodes=nodes
        )
        self._groups[NodeGroupInfo.NODE_PLACEMENT_GROUP_LABEL] = NodeGroupInfo(
            label=NodeGroupInfo.NODE_PLACEMENT_GROUP_LABEL, nodes=nodes, ignore_hardware=True
        )

    def get_node_group(self, label: str | None = None) -> NodeGroupInfo | None:
        return self._groups.get(NodeGroupInfo.DEFAULT_GROUP_LABEL if label is None else label)


def _node(rank: int, config: ClusterConfig, gpus: int) -> NodeInfo:
    resources = []
    if gpus:
        infos = [HardwareInfo(type=Accelerator.HW_TYPE, model=AcceleratorType.NV_GPU.value)] * gpus
        resources.append(HardwareResource(type=Accelerator.HW_TYPE, infos=infos))
    for group in config.node_groups or ():
        robots = group.hardware.configs if group.hardware is not None and rank in group.node_ranks else ()
        infos = [
            HardwareInfo(type=group.hardware_type, model="") for robot in robots if robot.node_rank == rank
        ]
        if infos:
            resources.append(HardwareResource(type=group.hardware_type, infos=infos))
    return NodeInfo(
        node_labels=config.get_node_labels_by_rank(rank),
        node_rank=rank,
        ray_id="",
        node_ip="",
        num_cpus=0,
        python_interpreter_path="",
        default_env_vars={},
        env_vars={},
        hardware_resources=resources,
    )


def world_sizes(cfg: DictConfig, *, gpus: int) -> dict[str, int]:
    """Processes per component, by RLinf's own placement."""
    with _quietly():
        placement = HybridComponentPlacement(cfg, PaperCluster(cfg.cluster, gpus=gpus))
    return {name: placement.get_world_size(name) for name in placement.components}


def validate(cfg: DictConfig, *, gpus: int) -> DictConfig:
    """RLinf's `validate_cfg`, which changes `cfg` in place.

    Raises:
        Exception: what RLinf raises when it refuses the config; mostly an AssertionError.
    """
    with _quietly():
        cluster = PaperCluster(cfg.cluster, gpus=gpus)
        with patch.object(rlinf.config, "Cluster", lambda *_, **__: cluster):
            return rlinf.config.validate_cfg(cfg)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without RLinf's words about placements, and about keys that it has moved."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
