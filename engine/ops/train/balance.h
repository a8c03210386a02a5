// The load-balancing loss of mixtures (https://arxiv.org/abs/2101.03961, equations 4 to 6), over the rows of
// all layers as one, as transformers' load_balancing_loss_func has it: of X experts
//
//   coefficient X sum over e of (share of rows that chose e) (mean of e's probability)
//
// Rows that chose several count for each. The choice is piecewise constant; probabilities have a gradient.
#pragma once

#include "engine/graph/op.h"

namespace oar::train {

// Of every route of the graph, scalar. `share` (T) f32: what each row counts, in all 1; padding has 0.
// UNIMPLEMENTED for routers that are no plain softmax.
Result<Val> balance_loss(Graph& graph, Val share, double coefficient);

}  // namespace oar::train
