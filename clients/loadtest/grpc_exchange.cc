// Calls run on gRPC's threads and are timed there; what they saw is handed to the worker's io_context, where
// the record lives.
#include "clients/loadtest/grpc_exchange.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <cctype>
#include <fstream>
#include <sstream>

#include "clients/loadtest/tensor_request.h"
#include "engine/base/format.h"
#include "inference/grpc_service.grpc.pb.h"

namespace oar::loadtest {
namespace {

using inference::GRPCInferenceService;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

constexpr int kMostMessage = 1 << 30;

std::string read_pem(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

// Server names and messages may hold anything; records are for text files.
std::string status_text(const grpc::Status& s) {
  constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto code = static_cast<size_t>(s.error_code());
  return cat("gRPC ", code < std::size(kNames) ? kNames[code] : "error", ": ",
             s.error_message().substr(0, 300));
}

void add_bytes_input(ModelInferRequest& r, const char* name, const std::string& value) {
  auto* in = r.add_inputs();
  in->set_name(name);
  in->set_datatype("BYTES");
  in->add_shape(1);
  in->mutable_contents()->add_bytes_contents(value);
}

class Target final : public GrpcTarget {
 public:
  Target(const RunSpec& spec, const Workload& workload)
      : workload_(workload), streaming_(workload.spec().endpoint == Endpoint::kGrpcStream) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // each channel is a connection of its own
    arguments.SetMaxReceiveMessageSize(kMostMessage);
    arguments.SetMaxSendMessageSize(kMostMessage);
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
    if (spec.server.tls) {
      grpc::SslCredentialsOptions tls;
      if (!spec.server.tls_options.ca.empty()) tls.pem_root_certs = read_pem(spec.server.tls_options.ca);
      if (!spec.server.tls_options.certificate.empty()) {
        tls.pem_cert_chain = read_pem(spec.server.tls_options.certificate);
        tls.pem_private_key = read_pem(spec.server.tls_options.key);
      }
      credentials = grpc::SslCredentials(tls);
    }
    const bool v6 = spec.server.host.find(':') != std::string::npos;
    const std::string address = cat(v6 ? "[" : "", spec.server.host, v6 ? "]" : "", ":", spec.server.port);
    for (int i = 0; i < std::max(1, spec.connections); ++i)
      stubs_.push_back(
          GRPCInferenceService::NewStub(grpc::CreateCustomChannel(address, credentials, arguments)));
    for (const std::string& h : spec.headers) {
      const size_t colon = h.find(':');
      std::string name = h.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      const size_t value = h.find_first_not_of(' ', colon + 1);
      metadata_.emplace_back(std::move(name), value == std::string::npos ? "" : h.substr(value));
    }
    base_.set_model_name(workload.spec().model);
    for (const InputTensor& t : workload.tensors()) {
      auto* in = base_.add_inputs();
      in->set_name(t.name);
      in->set_datatype(t.datatype);
      for (const int64_t d : t.shape) in->add_shape(d);
      base_.add_raw_input_contents(t.raw);
    }
  }

  std::shared_ptr<Exchange> make(WorkerContext& worker, Record record, const Plan& plan,
                                 const std::string& prompt, Exchange::Done done) override;

  GRPCInferenceService::Stub& stub() { return *stubs_[turn_++ % stubs_.size()]; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }
  bool streaming() const { return streaming_; }
  // Tensors are the same every time, and read where they lie.
  const ModelInferRequest* shared_request() const { return workload_.tensors().empty() ? nullptr : &base_; }
  ModelInferRequest text_request(const Plan& plan, const std::string& prompt) const {
    ModelInferRequest r = base_;
    add_bytes_input(r, "text_input", prompt);
    add_bytes_input(r, "sampling_parameters", workload_.sampling(plan));
    if (streaming_) {
      auto* stream = r.add_inputs();
      stream->set_name("stream");
      stream->set_datatype("BOOL");
      stream->add_shape(1);
      stream->mutable_contents()->add_bool_contents(true);
      (*r.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
    }
    return r;
  }

 private:
  const Workload workload_;
  const bool streaming_;
  std::vector<std::unique_ptr<GRPCInferenceService::Stub>> stubs_;
  std::atomic<size_t> turn_{0};
  std::vector<std::pair<std::string, std::string>> metadata_;
  ModelInferRequest base_;
};

class Call final : public Exchange,
                   public grpc::ClientBidiReactor<ModelInferRequest, ModelStreamInferResponse> {
 public:
  Call(std::shared_ptr<Target> target, WorkerContext& worker, Record record, const Plan& plan,
       ModelInferRequest request, Done done)
      : target_(std::move(target)),
        worker_(worker),
        request_(std::move(request)),
        cancel_after_(plan.cancel_after),
        done_(std::move(done)),
        alive_(asio::make_work_guard(worker.io)),
        timer_(worker.io) {
    record_ = std::move(record);
    record_.slow = plan.slow && target_->streaming();
  }

  void start() override {
    for (const auto& [name, value] : target_->metadata()) context_.AddMetadata(name, value);
    const RunSpec& spec = *worker_.spec;
    context_.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(spec.timeout)));
    const ModelInferRequest* request =
        target_->shared_request() != nullptr ? target_->shared_request() : &request_;
    self_ = std::static_pointer_cast<Call>(shared_from_this());  // until gRPC is done with it
    record_.sent = last_seen_ = worker_.now();
    watch();
    if (!target_->streaming()) {
      target_->stub().async()->ModelInfer(&context_, request, &response_,
                                          [this](grpc::Status s) { ended(std::move(s)); });
      return;
    }
    target_->stub().async()->ModelStreamInfer(&context_, this);
    AddHold();  // of reads that an alarm starts
    StartRead(&message_);
    StartWriteLast(request, grpc::WriteOptions());
    StartCall();
  }

  void abort(const char* why) override {
    if (over_) return;
    record_.error = why;
    context_.TryCancel();
    complete();
  }

 private:
  // ---- gRPC's threads ----
  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    const int64_t now = worker_.now();
    asio::post(worker_.io, [self = self_, now, m = std::move(message_)]() mutable {
      self->received(m, now);
      self->worker_.after_event();
    });
    message_ = ModelStreamInferResponse();
    if (!record_slow_) return StartRead(&message_);
    const double seconds =
        64.0 / static_cast<double>(std::max<int64_t>(1, worker_.spec->slow_bytes_per_second));
    alarm_.Set(std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::microseconds>(
                                                      std::chrono::duration<double>(seconds)),
               [this](bool) { StartRead(&message_); });
  }
  void OnDone(const grpc::Status& s) override { ended(s); }
  void ended(grpc::Status s) {
    const int64_t now = worker_.now();
    asio::post(worker_.io, [self = std::move(self_), now, s = std::move(s)] { self->finished(s, now); });
  }

  // ---- the worker's thread ----
  void received(const ModelStreamInferResponse& m, int64_t now) {
    if (over_) return;
    last_seen_ = now;
    if (!m.error_message().empty()) {
      record_.error = cat("error in the stream: ", m.error_message().substr(0, 300));
      return;
    }
    const ModelInferResponse& r = m.infer_response();
    const auto last = r.parameters().find("triton_final_response");
    final_ |= last != r.parameters().end() && last->second.bool_param();
    worker_.bytes += static_cast<int64_t>(m.ByteSizeLong());
    if (r.outputs_size() == 0) return;
    if (worker_.spec->keep_texts) record_.text += text_of(r);
    output(now);
    if (cancel_after_ >= 0 && record_.chunks > cancel_after_) {
      record_.cancelled = true;
      context_.TryCancel();
      complete();
    }
  }
  void output(int64_t now) {
    if (record_.first < 0) record_.first = now;
    else {
      worker_.gaps.record(now - record_.last);
      if (worker_.spec->keep_gaps) record_.gaps.push_back(static_cast<float>(now - record_.last) * 1e-6f);
    }
    record_.last = now;
    ++record_.chunks;
    ++worker_.chunks;
    if (worker_.progress != nullptr) worker_.progress->tokens.fetch_add(1, std::memory_order_relaxed);
  }
  void finished(const grpc::Status& s, int64_t now) {
    alive_.reset();
    if (over_) return;
    record_.http_status = static_cast<unsigned>(s.error_code());
    if (!s.ok()) record_.error = status_text(s);
    else if (!target_->streaming()) {
      worker_.bytes += static_cast<int64_t>(response_.ByteSizeLong());
      if (worker_.spec->keep_texts) record_.text = text_of(response_);
      output(now);
    } else if (record_.error.empty() && !final_ && record_.chunks == 0) {
      record_.error = "the stream ended without an answer";
    }
    complete();
  }
  void complete() {
    over_ = true;
    record_.end = worker_.now();
    record_.output_tokens = record_.chunks;  // a response is a token, or what the server made of one
    timer_.cancel();
    done_(*this);
  }
  // The first output: BYTES elements without their lengths, anything else as it is.
  static std::string text_of(const ModelInferResponse& r) {
    std::string out;
    if (r.raw_output_contents_size() > 0) {
      std::string_view raw = r.raw_output_contents(0);
      if (r.outputs_size() == 0 || r.outputs(0).datatype() != "BYTES") return std::string(raw);
      while (raw.size() >= 4) {
        uint32_t n = 0;
        for (int i = 3; i >= 0; --i) n = n << 8 | static_cast<unsigned char>(raw[static_cast<size_t>(i)]);
        raw.remove_prefix(4);
        out += raw.substr(0, n);
        raw.remove_prefix(std::min<size_t>(n, raw.size()));
      }
    } else if (r.outputs_size() > 0) {
      for (const std::string& b : r.outputs(0).contents().bytes_contents()) out += b;
    }
    return out;
  }
  void watch() {
    record_slow_ = record_.slow;
    if (record_.slow) return;
    const auto stall = static_cast<int64_t>(worker_.spec->stall_timeout * 1e9);
    timer_.expires_at(worker_.start + std::chrono::nanoseconds(last_seen_ + stall));
    timer_.async_wait([self = shared_from_this(), this, stall](boost::system::error_code ec) {
      if (ec || over_) return;
      if (worker_.now() - last_seen_ >= stall) {
        record_.error = cat("the server sent nothing for ", worker_.spec->stall_timeout, " s");
        context_.TryCancel();
        return complete();
      }
      watch();
    });
  }

  const std::shared_ptr<Target> target_;
  WorkerContext& worker_;
  ModelInferRequest request_;
  const int64_t cancel_after_;
  Done done_;
  // The worker's loop runs until gRPC has let go, so that no handler comes after it.
  asio::executor_work_guard<asio::io_context::executor_type> alive_;
  asio::steady_timer timer_;
  grpc::ClientContext context_;
  ModelInferResponse response_;       // unary
  ModelStreamInferResponse message_;  // being read
  grpc::Alarm alarm_;
  std::shared_ptr<Call> self_;
  bool record_slow_ = false, final_ = false, over_ = false;
  int64_t last_seen_ = 0;
};

std::shared_ptr<Exchange> Target::make(WorkerContext& worker, Record record, const Plan& plan,
                                       const std::string& prompt, Exchange::Done done) {
  ModelInferRequest request;
  if (shared_request() == nullptr) request = text_request(plan, prompt);
  // The call keeps what it needs of the target beyond the run's end.
  return std::make_shared<Call>(std::static_pointer_cast<Target>(shared_from_this()), worker,
                                std::move(record), plan, std::move(request), std::move(done));
}

}  // namespace

Result<std::shared_ptr<GrpcTarget>> GrpcTarget::create(const RunSpec& spec, const Workload& workload) {
  if (spec.server.tls && !spec.server.tls_options.verify)
    return unimplemented("insecure: gRPC always checks the server's certificate; give --tls-ca");
  return std::shared_ptr<GrpcTarget>(std::make_shared<Target>(spec, workload));
}

}  // namespace oar::loadtest
