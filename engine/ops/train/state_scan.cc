// segment_scan and its way back (ops.h): the recurrence of kernels/state_scan.h over packed rows, in double.
#include <cmath>

#include "engine/ops/op_util.h"
#include "engine/ops/train/ops.h"

namespace oar::train {
namespace {

const OpDef& state_scan() { return *find_op("state_scan"); }

Types scan_infer(const Graph& g, Ids in, const Attrs& attrs) { return state_scan().infer(g, in, attrs); }
Status scan_evaluate(EvalContext& ctx) { return state_scan().evaluate(ctx); }

std::vector<Val> scan_vjp(const Pullback& p) {
  std::vector<Val> in(p.in.begin(), p.in.end());
  in.push_back(p.d[0]);
  std::vector<Val> out = emit(p.b, op_segment_scan_back, in, p.attrs);
  out.resize(in.size() - 1);
  return out;
}

Types back_infer(const Graph& g, Ids in, const Attrs&) {
  std::vector<TensorType> out;
  for (size_t k = 0; k < 5; ++k) out.push_back({Format::f32(), shape_of(g, in[k])});
  return out;
}

// One head of v, with the states that its rows begin with. Row by row, S = decay S' + k u^T with
// u = beta (v - decay S'^T k), or beta v without a correction, and y = S^T q.
class HeadScan {
 public:
  HeadScan(HostInputs in, bool delta, size_t head, std::span<HostValue> out)
      : in_(in), out_(out), delta_(delta), h_(head), u_(in[2]->shape[2]), old_(u_.size()) {
    const Shape &q = in[0]->shape, &v = in[2]->shape;
    T_ = static_cast<size_t>(q[0]), Hk_ = static_cast<size_t>(q[1]), Dk_ = static_cast<size_t>(q[2]);
    Hv_ = static_cast<size_t>(v[1]), Dv_ = static_cast<size_t>(v[2]);
  }

  // States in front of every n-th row are kept, and those between computed again from there.
  void back() {
    const auto n = static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(T_))));
    std::vector<std::vector<double>> borders, inside(n);
    std::vector<double> S(Dk_ * Dv_), dS(S.size());
    for (size_t t = 0; t < T_; ++t) {
      if (t % n == 0) borders.push_back(S);
      forward(t, S);
    }
    for (size_t c = borders.size(); c-- > 0;) {
      const size_t begin = c * n, end = std::min(T_, begin + n);
      S = borders[c];
      for (size_t t = begin; t < end; ++t) {
        inside[t - begin] = S;
        forward(t, S);
      }
      for (size_t t = end; t-- > begin;) row_back(t, inside[t - begin], dS);
    }
  }

 private:
  bool first(size_t t) const { return t == 0 || in_[5]->i[t] != in_[5]->i[t - 1]; }
  size_t key(size_t t) const { return (t * Hk_ + h_ / (Hv_ / Hk_)) * Dk_; }
  size_t number(size_t t) const { return t * Hv_ + h_; }

  // S becomes what row t leaves; decayed_ is what it found, old_ what that gave for k.
  void forward(size_t t, std::vector<double>& S) {
    const double decay = std::exp(in_[3]->f[number(t)]), beta = in_[4]->f[number(t)];
    const double* const k = &in_[1]->f[key(t)];
    for (double& s : S) s = first(t) ? 0 : s * decay;
    decayed_ = S;
    for (size_t j = 0; j < Dv_; ++j) {
      old_[j] = 0;
      for (size_t d = 0; d < Dk_ && delta_; ++d) old_[j] += S[d * Dv_ + j] * k[d];
      u_[j] = beta * (in_[2]->f[number(t) * Dv_ + j] - old_[j]);
      for (size_t d = 0; d < Dk_; ++d) S[d * Dv_ + j] += k[d] * u_[j];
    }
  }

  // dS, of what row t leaves, becomes that of what it found.
  void row_back(size_t t, std::vector<double> S, std::vector<double>& dS) {
    forward(t, S);
    const double *const q = &in_[0]->f[key(t)], *const k = &in_[1]->f[key(t)];
    const double *const v = &in_[2]->f[number(t) * Dv_], *const dy = &in_[6]->f[number(t) * Dv_];
    double *const dq = &out_[0].f[key(t)], *const dk = &out_[1].f[key(t)];
    double &dg = out_[3].f[number(t)], &dbeta = out_[4].f[number(t)];
    const double beta = in_[4]->f[number(t)], decay = std::exp(in_[3]->f[number(t)]);
    for (size_t j = 0; j < Dv_; ++j) {
      double du = 0;
      for (size_t d = 0; d < Dk_; ++d) {
        const size_t at = d * Dv_ + j;
        dq[d] += S[at] * dy[j];
        dS[at] += q[d] * dy[j];
        du += dS[at] * k[d];
        dk[d] += dS[at] * u_[j];
      }
      dbeta += du * (v[j] - old_[j]);
      out_[2].f[number(t) * Dv_ + j] = beta * du;
      for (size_t d = 0; d < Dk_; ++d) {
        const size_t at = d * Dv_ + j;
        if (delta_) {
          dk[d] -= decayed_[at] * beta * du;
          dS[at] -= k[d] * beta * du;
        }
        dg += dS[at] * decayed_[at];
        dS[at] = first(t) ? 0 : dS[at] * decay;
      }
    }
  }

  HostInputs in_;
  std::span<HostValue> out_;
  const bool delta_;
  const size_t h_;
  size_t T_ = 0, Hk_ = 0, Dk_ = 0, Hv_ = 0, Dv_ = 0;
  std::vector<double> u_, old_, decayed_;  // of the row that was last
};

Status back_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  for (HostValue& d : out) std::fill(d.f.begin(), d.f.end(), 0);
  for (size_t h = 0; h < static_cast<size_t>(in[2]->shape[1]); ++h)
    HeadScan(in, attrs.get_bool("delta", true), h, out).back();
  return ok_status();
}
Status back_evaluate(EvalContext& ctx) { return evaluate_as(ctx, back_infer, back_reference); }

}  // namespace

const OpDef op_segment_scan = {
    .name = "segment_scan", .infer = scan_infer, .vjp = scan_vjp, .evaluate = scan_evaluate};
const OpDef op_segment_scan_back = {
    .name = "segment_scan_back", .infer = back_infer, .evaluate = back_evaluate};

}  // namespace oar::train
