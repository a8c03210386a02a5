#include "tests/server/grpc_client.h"

#include <chrono>

namespace oar_test {

std::shared_ptr<grpc::Channel> channel_to(int port) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own for each channel
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);            // flow control's window stays at 64 KB
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(),
                                   arguments);
}

std::pair<grpc::Status, std::string> raw_call(int port, const std::string& method, const std::string& message,
                                              const std::string& authorization) {
  grpc::GenericStub stub(channel_to(port));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  grpc::CompletionQueue queue;
  const grpc::Slice slice(message);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  call->Finish(&reply, &status, nullptr);
  void* tag;
  bool ok;
  queue.Next(&tag, &ok);
  std::string bytes;
  std::vector<grpc::Slice> slices;
  if (status.ok() && reply.Dump(&slices).ok()) {
    for (const grpc::Slice& s : slices) bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  return {status, bytes};
}

inference::ModelInferRequest::InferInputTensor* add_input(inference::ModelInferRequest& request,
                                                          const std::string& name,
                                                          const std::string& datatype,
                                                          std::vector<int64_t> shape) {
  auto* input = request.add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  for (const int64_t d : shape) input->add_shape(d);
  return input;
}

inference::ModelInferRequest text_request(const std::string& text, const std::string& sampling_parameters) {
  inference::ModelInferRequest r;
  r.set_model_name("fake");
  r.set_id("id-1");
  add_input(r, "text_input", "BYTES")->mutable_contents()->add_bytes_contents(text);
  if (!sampling_parameters.empty()) {
    add_input(r, "sampling_parameters", "BYTES")->mutable_contents()->add_bytes_contents(sampling_parameters);
  }
  return r;
}

std::string text_of(const inference::ModelInferResponse& response) {
  if (response.outputs_size() != 1 || response.raw_output_contents_size() != 1) return "no output";
  const std::string& raw = response.raw_output_contents(0);
  return raw.size() < 4 ? "short output" : raw.substr(4);
}

std::string raw_bytes(const std::string& text) {
  std::string out;
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(text.size() >> shift & 0xFF);
  return out + text;
}

}  // namespace oar_test
