// TensorProto -> Tensor: raw or typed data, packed nibbles, strings, external files.
#pragma once

#include <map>

#include "engine/import/onnx.h"
#include "engine/import/onnx_proto.h"
#include "engine/tensor/mapped_file.h"

namespace oar::onnx {

// Where a tensor's bytes may lie: the model's own buffer and files beside it.
class TensorSource {
 public:
  // `path`: of the model's file; empty where it has none, and then no other file may be named.
  TensorSource(Buffer file, std::string path, const ImportOptions& options)
      : file_(std::move(file)), path_(std::move(path)), options_(options) {}
  // `later`: as in tensor_from_bytes().
  Result<Tensor> read(const TensorMsg& t, DeferredCopies* later = nullptr);
  // Sparse to dense.
  Result<Tensor> read(const SparseMsg& s);
  const Buffer& file() const { return file_; }
  const ImportOptions& options() const { return options_; }
  // Of external data, as far as it was read.
  std::vector<std::string> external_files() const;

 private:
  Result<Buffer> external(const TensorMsg& t);
  Buffer file_;
  std::string path_;
  ImportOptions options_;
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
};

}  // namespace oar::onnx
