// Evaluations of ops that language models have too, under the same names: their OpDefs lie with their shape
// rules and kernels, their meaning for any dtype here.
#pragma once

#include "engine/graph/evaluate.h"

namespace oar::tensor {

#define OAR_EVALUATOR(name) Status name(EvalContext& ctx)
OAR_EVALUATOR(neg);
OAR_EVALUATOR(abs);
OAR_EVALUATOR(exp);
OAR_EVALUATOR(log);
OAR_EVALUATOR(sqrt);
OAR_EVALUATOR(rsqrt);
OAR_EVALUATOR(square);
OAR_EVALUATOR(reciprocal);
OAR_EVALUATOR(tanh);
OAR_EVALUATOR(sigmoid);
OAR_EVALUATOR(erf);
OAR_EVALUATOR(sin);
OAR_EVALUATOR(cos);
OAR_EVALUATOR(floor);
OAR_EVALUATOR(add);
OAR_EVALUATOR(sub);
OAR_EVALUATOR(mul);
OAR_EVALUATOR(div);
OAR_EVALUATOR(max);
OAR_EVALUATOR(min);
OAR_EVALUATOR(pow);
OAR_EVALUATOR(relu);
OAR_EVALUATOR(silu);
OAR_EVALUATOR(gelu);
OAR_EVALUATOR(softmax);
OAR_EVALUATOR(reduce_sum);
OAR_EVALUATOR(reduce_mean);
OAR_EVALUATOR(reduce_max);
OAR_EVALUATOR(matmul);
OAR_EVALUATOR(transpose);
OAR_EVALUATOR(concat);
OAR_EVALUATOR(cast);
#undef OAR_EVALUATOR

Result<std::shared_ptr<const void>> prepare_matmul(PrepareContext& ctx);

}  // namespace oar::tensor
