// ONNX's protobuf messages as structs of views into the file (onnx.proto3), read by a bounded wire reader. A
// damaged message is DATA_LOSS with its byte offset. What it is not: validation of what they say.
#pragma once

#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace oar::onnx {

struct TensorMsg {
  std::string_view name, raw;
  std::vector<int64_t> dims;
  int64_t type = 0;
  bool has_raw = false, external = false;
  std::vector<float> floats;
  std::vector<int64_t> ints;  // int32_data, int64_data and uint64_data
  std::vector<double> doubles;
  std::vector<std::string_view> strings;
  std::string_view location;
  uint64_t external_offset = 0, external_length = 0;
  bool external_sized = false;
  size_t offset = 0;  // of the message in the file
};

struct SparseMsg {
  TensorMsg values, indices;
  std::vector<int64_t> dims;
};

struct GraphMsg;

// AttributeProto.AttributeType
enum class AttrType : uint8_t {
  kUndefined = 0,
  kFloat = 1,
  kInt = 2,
  kString = 3,
  kTensor = 4,
  kGraph = 5,
  kFloats = 6,
  kInts = 7,
  kStrings = 8,
  kTensors = 9,
  kGraphs = 10,
  kSparse = 11,
  kSparses = 12,
  kType = 13,
  kTypes = 14,
};

struct AttrMsg {
  std::string_view name, ref;  // `ref`: takes the value of this attribute of the enclosing function
  AttrType type = AttrType::kUndefined;
  float f = 0;
  int64_t i = 0;
  std::string_view s;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string_view> strings;
  std::vector<TensorMsg> tensors;  // t is tensors[0]
  std::vector<GraphMsg> graphs;    // g is graphs[0]
  std::vector<SparseMsg> sparse;
  std::string_view type_proto;
};

struct NodeMsg {
  std::string_view name, op, domain, overload;
  std::vector<std::string_view> inputs, outputs;
  std::vector<AttrMsg> attrs;
  size_t offset = 0;
};

struct DimMsg {
  int64_t value = -1;
  std::string_view param;
};
struct TypeMsg {
  enum Kind : uint8_t { kNone, kTensor, kSequence, kOptional, kOther } kind = kNone;
  int64_t elem = 0;  // of the innermost tensor
  bool ranked = false;
  std::vector<DimMsg> dims;
};
struct ValueMsg {
  std::string_view name;
  TypeMsg type;
};

struct GraphMsg {
  std::string_view name;
  std::vector<NodeMsg> nodes;
  std::vector<TensorMsg> initializers;
  std::vector<SparseMsg> sparse;
  std::vector<ValueMsg> inputs, outputs;
};

struct OpsetMsg {
  std::string_view domain;
  int64_t version = 0;
};

struct FunctionMsg {
  std::string_view name, domain, overload;
  std::vector<std::string_view> inputs, outputs, attrs;
  std::vector<AttrMsg> defaults;
  std::vector<NodeMsg> nodes;
  std::vector<OpsetMsg> opsets;
};

struct ModelMsg {
  int64_t ir_version = 0;
  std::string_view producer, producer_version;
  std::vector<OpsetMsg> opsets;
  std::vector<std::pair<std::string_view, std::string_view>> metadata;
  std::vector<FunctionMsg> functions;
  GraphMsg graph;
  bool has_graph = false;
};

// `file` outlives what is returned.
Result<ModelMsg> read_model(std::string_view file);
Result<TensorMsg> read_tensor(std::string_view file);
// SequenceProto and OptionalProto hold their values under the same numbers.
struct ContainerMsg {
  int64_t elem_type = 0;  // 1 tensor, 3 sequence, 5 optional; 0 none
  std::vector<TensorMsg> tensors;
  std::vector<ContainerMsg> containers;
};
Result<ContainerMsg> read_container(std::string_view file);
TypeMsg read_type(std::string_view bytes);

}  // namespace oar::onnx
