"""The enumerations of Paddle Inference, under its names and numbers."""
from __future__ import annotations

import enum


class DataType(enum.IntEnum):
    FLOAT32 = 0
    INT64 = 1
    INT32 = 2
    UINT8 = 3
    INT8 = 4
    FLOAT16 = 5
    BOOL = 6
    FLOAT64 = 7
    BFLOAT16 = 8


class PlaceType(enum.IntEnum):
    UNK = -1
    CPU = 0
    GPU = 1
    XPU = 2
    CUSTOM = 4


class PrecisionType(enum.IntEnum):
    Float32 = 0
    Int8 = 1
    Half = 2
    Bfloat16 = 3


# oar_dtype (engine/capi/oar.h) to Paddle's; what Paddle has no number for is absent.
DATA_TYPES = {1: DataType.FLOAT32, 2: DataType.FLOAT64, 3: DataType.FLOAT16, 4: DataType.BFLOAT16, 5: DataType.BOOL,
              6: DataType.INT8, 7: DataType.UINT8, 10: DataType.INT32, 12: DataType.INT64}


def get_num_bytes_of_data_type(dtype: DataType) -> int:
    return {DataType.FLOAT32: 4, DataType.INT64: 8, DataType.INT32: 4, DataType.FLOAT16: 2, DataType.FLOAT64: 8,
            DataType.BFLOAT16: 2}.get(dtype, 1)
