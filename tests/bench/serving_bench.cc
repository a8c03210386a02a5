// What the protocol costs: one ordinary model asked by many clients, in process and through gRPC, in turns in
// one run. The measured path is the one users get: the same BatchedPredictor behind both, a Server on a local
// port, one channel and one blocking stub per client.
//
//   serving_bench MODEL --shape 1,3,224,224 [--clients 32] [--seconds 2] [--rounds 5] [--threads 0]
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/tensor/element.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/api/tensor_wire.h"
#include "server/repository/repository.h"
#include "server/server.h"

namespace {

using namespace oar;  // NOLINT
using Seconds = std::chrono::duration<double>;

struct Options {
  std::string model;
  std::vector<int64_t> shape;
  int clients = 32, rounds = 5, threads = 0;
  double seconds = 2;
};

// Requests per second of `clients` threads that call `ask` in a loop; 0 when one failed.
template <class MakeClient>
double measure(const Options& o, MakeClient&& make_client) {
  std::atomic<bool> stop{false}, failed{false};
  std::atomic<int64_t> done{0};
  std::vector<std::thread> threads;
  for (int c = 0; c < o.clients; ++c) {
    threads.emplace_back([&, c] {
      auto ask = make_client(c);
      while (!stop && !failed) {
        if (!ask()) failed = true;
        else ++done;
      }
    });
  }
  std::this_thread::sleep_for(Seconds(o.seconds * 0.25));  // warm
  const int64_t before = done;
  const auto start = Clock::now();
  std::this_thread::sleep_for(Seconds(o.seconds));
  const double rate = static_cast<double>(done - before) / Seconds(Clock::now() - start).count();
  stop = true;
  for (std::thread& t : threads) t.join();
  return failed ? 0 : rate;
}

int run(const Options& o) {
  RepositoryOptions r;
  r.predictor.threads = o.threads;
  auto opened = open_repository(o.model, "bench", std::move(r));
  if (!opened.ok()) return std::fprintf(stderr, "%s\n", opened.status().message().c_str()), 1;
  const std::shared_ptr<api::ModelCatalog> catalog = std::move(*opened);
  ServerOptions options;
  options.http_address.clear();
  options.grpc_address = "127.0.0.1:0";
  options.grpc_limits.max_message_bytes = 64 << 20;
  auto server = Server::start(options, catalog);
  if (!server.ok()) return std::fprintf(stderr, "%s\n", server.status().message().c_str()), 1;
  const api::TensorModelPtr model = catalog->find("bench", "")->tensor;
  const api::TensorSpec& spec = model->config.inputs.at(0);
  const api::Datatype* type = api::datatype_of(spec.dtype);
  auto input = api::allocate_wire(*type, Shape(o.shape));
  if (!input.ok() || type->bytes == 0) return std::fprintf(stderr, "an input of numbers is needed\n"), 1;
  std::mt19937 random(1);
  auto* bytes = static_cast<unsigned char*>(input->mutable_data());
  for (uint64_t k = 0; k < input->bytes(); ++k) bytes[k] = static_cast<unsigned char>(random() & 0x3F);
  std::printf("%s, %s of %.0f KB, %d clients\n", o.model.c_str(), api::describe_tensor(Datum(*input)).c_str(),
              static_cast<double>(input->bytes()) * 1e-3, o.clients);

  const auto in_process = [&](int) {
    return [&] {
      std::promise<bool> answered;
      auto job = api::make_job(model->config, {{spec.name, *input}});
      if (!job.ok()) return std::fprintf(stderr, "%s\n", job.status().message().c_str()), false;
      job->done = [&](Result<std::vector<Datum>> outputs) { answered.set_value(outputs.ok()); };
      return model->runner->submit(std::move(*job)).ok() && answered.get_future().get();
    };
  };
  const auto through_grpc = [&](int client) {
    grpc::ChannelArguments arguments;
    arguments.SetInt("bench.client", client);  // otherwise equal channels share a connection
    arguments.SetMaxReceiveMessageSize(-1);
    std::shared_ptr<inference::GRPCInferenceService::Stub> stub = inference::GRPCInferenceService::NewStub(
        grpc::CreateCustomChannel("127.0.0.1:" + std::to_string((*server)->grpc_port()),
                                  grpc::InsecureChannelCredentials(), arguments));
    auto request = std::make_shared<inference::ModelInferRequest>();
    request->set_model_name("bench");
    auto* t = request->add_inputs();
    t->set_name(spec.name);
    t->set_datatype(std::string(type->name));
    for (const int64_t d : o.shape) t->add_shape(d);
    request->add_raw_input_contents(std::string(reinterpret_cast<const char*>(bytes), input->bytes()));
    return [stub, request] {
      grpc::ClientContext context;
      inference::ModelInferResponse response;
      const grpc::Status s = stub->ModelInfer(&context, *request, &response);
      if (!s.ok()) std::fprintf(stderr, "%s\n", s.error_message().c_str());
      return s.ok();
    };
  };
  std::vector<double> ratios;
  for (int round = 0; round < o.rounds; ++round) {
    const double local = measure(o, in_process), remote = measure(o, through_grpc);
    if (local <= 0 || remote <= 0) return 1;
    ratios.push_back(remote / local);
    std::printf("in process %9.1f/s   gRPC %9.1f/s   %.1f %%\n", local, remote, 100 * remote / local);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("median %.1f %%\n", 100 * ratios[ratios.size() / 2]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  for (int k = 1; k < argc; ++k) {
    const std::string a = argv[k];
    const char* value = k + 1 < argc ? argv[k + 1] : "";
    if (a == "--shape") {
      for (const char* p = value; *p != '\0';) {
        char* end = nullptr;
        o.shape.push_back(std::strtoll(p, &end, 10));
        if (end == p) break;
        p = *end == ',' ? end + 1 : end;
      }
      ++k;
    } else if (a == "--clients") {
      o.clients = static_cast<int>(std::strtol(value, nullptr, 10)), ++k;
    } else if (a == "--rounds") {
      o.rounds = static_cast<int>(std::strtol(value, nullptr, 10)), ++k;
    } else if (a == "--threads") {
      o.threads = static_cast<int>(std::strtol(value, nullptr, 10)), ++k;
    } else if (a == "--seconds") {
      o.seconds = std::strtod(value, nullptr), ++k;
    } else {
      o.model = a;
    }
  }
  if (o.model.empty() || o.shape.empty()) {
    std::fprintf(
        stderr,
        "serving_bench MODEL --shape 1,3,224,224 [--clients N] [--seconds S] [--rounds N] [--threads N]\n");
    return 2;
  }
  return run(o);
}
