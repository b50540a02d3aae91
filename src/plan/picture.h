// A plan as a picture: each server's load before and after as bars, and who sends to whom as arcs.
#pragma once

#include <string>

#include "plan/exchange.h"
#include "plan/report.h"

namespace distca {

/// An SVG document. Grey bars are what a rank would compute at home, blue ones what it computes, red where
/// that is beyond the tolerance. Arcs go from the rank that sends queries and keys to the one that computes;
/// their width is the share of bytes.
std::string plan_picture(const PlanReport& report, const Exchange& exchange, const RowBytes& bytes);

}  // namespace distca
