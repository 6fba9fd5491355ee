from collections.abc import Sequence

import numpy as np
import pytest
from acme_codec import Delta

import streamxf
from streamxf.errors import ParameterError
from streamxf.testing import CodecConformance


class TestConformance(CodecConformance):
    def codecs(self) -> Sequence[streamxf.Codec]:
        return [Delta(), Delta(stride=3)]

    examples = 20


@pytest.mark.parametrize("stride", [0, 65, -1, 1.0, True, "2"])
def test_a_stride_out_of_range_is_refused(stride: object) -> None:
    with pytest.raises(ParameterError, match="from 1 to 64"):
        Delta(stride=stride)


def test_it_helps_the_compressor_behind_it() -> None:
    indices = np.cumsum(np.arange(50_000) % 7, dtype=np.int64)
    plain = streamxf.encode(indices, [streamxf.ZStandard()])
    assert len(streamxf.encode(indices, [Delta(stride=8), streamxf.ZStandard()])) < len(plain) / 2
