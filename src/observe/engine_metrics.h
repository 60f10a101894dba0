// What the engine counts, as metrics.
#pragma once

#include "observe/prometheus_text.h"
#include "tidemill/engine.h"

namespace tidemill {

// One reading of Stats: vLLM's names where it has them, all others as "tidemill:".
void write_engine_metrics(PrometheusText& text, const Stats& stats);

}  // namespace tidemill
