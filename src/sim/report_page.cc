#include "sim/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace distca {
namespace {

constexpr char kHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>distca simulate</title><link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; --page: #fbfbfa; --ink: #1d2433; --soft: #667085; --line: #e2e4e9; --card: #fff;
  --linear: #3b6fd4; --tp: #9db7ea; --attention: #e08a2e; --exchange: #35a07c; --wait: #d65c5c; --bound: #8a94a8; }
@media (prefers-color-scheme: dark) { :root { --page: #14171d; --ink: #e6e9ef; --soft: #98a2b3; --line: #2c313b; --card: #1b1f27;
  --linear: #6d98ee; --tp: #3d5483; --attention: #f0a552; --exchange: #4fc39a; --wait: #ec7a7a; --bound: #6b7485; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 0 0 4px; } p { margin: 4px 0 12px; color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 18px 20px; margin: 18px 0; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
tr.best td { font-weight: 650; } tr.unfit td { color: var(--wait); }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
svg text.soft { fill: var(--soft); } .key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin: 0 5px 0 14px; }
.linear { fill: var(--linear); background: var(--linear); } .tp { fill: var(--tp); background: var(--tp); }
.attention { fill: var(--attention); background: var(--attention); } .exchange { fill: var(--exchange); background: var(--exchange); }
.wait { fill: var(--wait); background: var(--wait); } .bound { fill: var(--bound); background: var(--bound); } .line { stroke: var(--line); }
</style></head><body><main>
)";

/// Text of a page piece by piece.
class Page {
 public:
  template <typename... Values>
  void add(fmt::format_string<Values...> pattern, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), pattern, std::forward<Values>(values)...);
  }
  void rect(double x, double y, double width, double height, const char* kind) {
    add(R"(<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" class="{}"/>)", x, y,
        std::max(width, 0.0), height, kind);
  }
  void label(double x, double y, const std::string& text, const char* anchor = "start",
             const char* kind = "") {
    add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>)", x, y, anchor, kind, text);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&' || c == '"') {
      result += fmt::format("&#{};", int{c});
    } else {
      result += c;
    }
  }
  return result;
}

void add_policies(Page& page, const Study& study) {
  size_t best = 0;
  for (size_t i = 0; i < study.rows.size(); ++i) {
    if (study.rows[i].fits && study.rows[i].seconds.mean < study.rows[best].seconds.mean) best = i;
  }
  page.add(
      "<section><h2>Policies</h2><p>Mean and standard deviation over {} draws of documents. Speed-up over "
      "{}.</p>"
      "<table><tr><th>policy</th><th>step</th><th>tokens/s</th><th>MFU</th><th>speed-up</th><th>busiest ÷ "
      "mean</th>"
      "<th>imbalance</th><th>exposed</th><th>memory, largest</th></tr>",
      study.rows[0].draws.size(), study.rows[0].choice.name());
  for (size_t i = 0; i < study.rows.size(); ++i) {
    const StudyRow& row = study.rows[i];
    const auto mean = [&](double (*figure)(const StepResult&)) { return row.mean(figure); };
    page.add(
        "<tr class=\"{}\"><td>{}{}</td><td>{:.3f} ± {:.3f} "
        "s</td><td>{:.0f}</td><td>{:.1f}%</td><td>{:.2f}×</td>"
        "<td>{:.2f}</td><td>{:.1f}%</td><td>{:.1f}%</td><td>{:.0f} GB</td></tr>",
        !row.fits   ? "unfit"
        : i == best ? "best"
                    : "",
        row.choice.name(), row.fits ? "" : " (doesn't fit)", row.seconds.mean, row.seconds.deviation,
        static_cast<double>(study.setup.tokens) / row.seconds.mean,
        100 * study.flops_utilization(row.seconds.mean), row.speedup,
        mean([](const StepResult& r) { return r.compute_max_over_mean; }),
        100 * mean([](const StepResult& r) { return r.imbalance_share(); }),
        100 * mean([](const StepResult& r) { return r.exposed_share(); }),
        mean([](const StepResult& r) { return r.memory_max; }) / 1e9);
  }
  page.add("</table></section>");
}

void add_time_bars(Page& page, const Study& study) {
  page.add(
      "<section><h2>Where the step goes</h2><p><span class=\"key bound\"></span>the bound: all work shared "
      "evenly"
      "<span class=\"key wait\"></span>imbalance and bubbles<span class=\"key exchange\"></span>exposed "
      "communication</p>");
  double longest = 0;
  for (const StudyRow& row : study.rows) longest = std::max(longest, row.seconds.mean);
  page.add(R"(<svg viewBox="0 0 1000 {}" role="img" aria-label="step time by policy">)",
           26 * study.rows.size());
  double y = 0;
  for (const StudyRow& row : study.rows) {
    const double scale = 800 / longest;
    const double ideal = row.mean([](const StepResult& r) { return r.without_exchanges; });
    page.label(82, y + 16, row.choice.name(), "end");
    page.rect(90, y + 3, scale * study.balanced, 18, "bound");
    page.rect(90 + scale * study.balanced, y + 3, scale * (ideal - study.balanced), 18, "wait");
    page.rect(90 + scale * ideal, y + 3, scale * (row.seconds.mean - ideal), 18, "exchange");
    page.label(96 + scale * row.seconds.mean, y + 16, fmt::format("{:.2f} s", row.seconds.mean));
    y += 26;
  }
  page.add("</svg></section>");
}

/// One bar a rank; at most 128 ranks are drawn, evenly chosen.
void add_rank_bars(Page& page, const std::string& title, const std::vector<double>& values, double most,
                   const char* kind, const std::string& unit) {
  const size_t step = (values.size() + 127) / 128, bars = (values.size() + step - 1) / step;
  page.add(R"(<svg viewBox="0 0 1000 118" role="img" aria-label="{}">)", title);
  page.label(0, 12, title);
  const double width = 1000.0 / static_cast<double>(bars);
  for (size_t i = 0; i < bars; ++i) {
    const double height = 96 * values[i * step] / most;
    page.rect(static_cast<double>(i) * width, 116 - height, std::min(width * 0.8, 40.0), height, kind);
  }
  const double largest = *std::max_element(values.begin(), values.end());
  page.label(1000, 12, fmt::format("largest {:.1f} {}", largest, unit), "end", "soft");
  page.add("</svg>");
}

void add_ranks(Page& page, const ReportInputs& inputs) {
  const StudyRow& before = inputs.study->rows[inputs.base];
  const StudyRow& after = inputs.study->rows[inputs.cad];
  const auto gigabytes = [](std::vector<double> values) {
    for (double& value : values) value /= 1e9;
    return values;
  };
  page.add(
      "<section><h2>Ranks before and after</h2><p>Seconds each rank computes in the first draw's step, and "
      "the "
      "memory of its devices. All bars of a pair have one scale.</p>");
  const std::vector<double>&a = before.draws[0].busy, &b = after.draws[0].busy;
  const double busiest =
      std::max(*std::max_element(a.begin(), a.end()), *std::max_element(b.begin(), b.end()));
  add_rank_bars(page, before.choice.name() + ": compute", a, busiest, "attention", "s");
  add_rank_bars(page, after.choice.name() + ": compute", b, busiest, "attention", "s");
  const std::vector<double> c = gigabytes(before.draws[0].memory), d = gigabytes(after.draws[0].memory);
  const double largest =
      std::max(*std::max_element(c.begin(), c.end()), *std::max_element(d.begin(), d.end()));
  add_rank_bars(page, before.choice.name() + ": memory", c, largest, "linear", "GB");
  add_rank_bars(page, after.choice.name() + ": memory", d, largest, "linear", "GB");
  page.add("</section>");
}

const char* kind_of(EventKind kind) {
  switch (kind) {
    case EventKind::kLinear:
      return "linear";
    case EventKind::kTensorParallel:
      return "tp";
    case EventKind::kAttention:
      return "attention";
    default:
      return "exchange";
  }
}

/// Two lanes a rank, compute above exchanges, over [begin, end) seconds.
void add_timeline(Page& page, const std::string& title, const std::vector<TimelineEvent>& events,
                  int32_t ranks, double begin, double end) {
  page.add(R"(<svg viewBox="0 0 1000 {}" role="img" aria-label="timeline of {}">)", 20 + 22 * ranks, title);
  page.label(0, 12, fmt::format("{}: {:.0f} ms", title, 1e3 * (end - begin)));
  const double scale = 940 / (end - begin);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    page.label(52, 34 + 22 * rank, fmt::format("rank {}", rank), "end", "soft");
  }
  for (const TimelineEvent& event : events) {
    if (event.rank >= ranks || event.begin >= end || event.begin + event.seconds <= begin) continue;
    const double from = std::max(event.begin, begin), to = std::min(event.begin + event.seconds, end);
    const bool below = event.stream == Stream::kExchange;
    page.rect(60 + scale * (from - begin), 20 + 22 * event.rank + (below ? 13 : 0), scale * (to - from),
              below ? 5 : 12, kind_of(event.kind));
  }
  page.add("</svg>");
}

void add_timelines(Page& page, const ReportInputs& inputs) {
  page.add(
      "<section><h2>Timelines</h2><p><span class=\"key linear\"></span>linear layers<span class=\"key "
      "tp\"></span>"
      "tensor parallelism's collectives<span class=\"key attention\"></span>core attention<span class=\"key "
      "exchange\">"
      "</span>exchanges and gathers. A few layers of forward, the same span of time in both.</p>");
  const StudyRow& after = inputs.study->rows[inputs.cad];
  // Four layers of the faster one, a little into the step.
  double layer = 0;
  for (const TimelineEvent& event : inputs.cad_detail.events) {
    if (event.layer == 8 && !event.backward && layer == 0) layer = event.begin / 8;
  }
  const double begin = 2 * layer, end = begin + std::max(4 * layer, 1e-6);
  const auto ranks = static_cast<int32_t>(std::min<int64_t>(16, inputs.study->setup.all_ranks()));
  add_timeline(page, inputs.study->rows[inputs.base].choice.name(), inputs.base_detail.events, ranks, begin,
               end);
  add_timeline(page, after.choice.name(), inputs.cad_detail.events, ranks, begin, end);
  page.add("</section>");
}

void add_bytes(Page& page, const ReportInputs& inputs) {
  const auto& bytes = inputs.cad_detail.bytes;
  if (bytes.empty()) return;
  const size_t ranks = bytes.size(), step = (ranks + 63) / 64, cells = (ranks + step - 1) / step;
  std::vector<std::vector<double>> sums(cells, std::vector<double>(cells, 0.0));
  double most = 0;
  for (size_t i = 0; i < ranks; ++i) {
    for (size_t j = 0; j < ranks; ++j) most = std::max(most, sums[i / step][j / step] += bytes[i][j]);
  }
  const double size = 480.0 / static_cast<double>(cells);
  page.add(
      "<section><h2>Bytes between ranks</h2><p>From the rank of the row to that of the column, in the step: "
      "at most "
      "{:.1f} GB{}.</p><svg viewBox=\"0 0 1000 490\" role=\"img\" aria-label=\"bytes matrix\">",
      most / 1e9, step > 1 ? fmt::format(" ({} ranks a cell)", step) : "");
  page.add(R"(<rect x="0" y="0" width="480" height="480" fill="none" class="line"/>)");
  for (size_t i = 0; i < cells; ++i) {
    for (size_t j = 0; j < cells; ++j) {
      if (sums[i][j] == 0) continue;
      page.add(
          R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="exchange" opacity="{:.2f}"/>)",
          static_cast<double>(j) * size, static_cast<double>(i) * size, size, size,
          0.15 + 0.85 * sums[i][j] / most);
    }
  }
  page.add("</svg></section>");
}

void add_scale(Page& page, const ReportInputs& inputs) {
  if (inputs.scale.empty()) return;
  page.add(
      "<section><h2>Speed-up against scale</h2><p>{} over {}, and what perfect balance would give "
      "(<span class=\"key bound\"></span>), with as many tokens a device.</p>",
      inputs.study->rows[inputs.cad].choice.name(), inputs.study->rows[inputs.base].choice.name());
  double most = 1;
  for (const ScalePoint& point : inputs.scale)
    most = std::max(most, point.base_seconds / point.balanced_seconds);
  page.add(R"(<svg viewBox="0 0 1000 200" role="img" aria-label="speed-up against scale">)");
  const double width = 1000.0 / static_cast<double>(inputs.scale.size());
  double x = 0;
  for (const ScalePoint& point : inputs.scale) {
    const double speedup = point.base_seconds / point.cad_seconds,
                 bound = point.base_seconds / point.balanced_seconds;
    page.rect(x + width * 0.2, 170 - 140 * bound / most, width * 0.25, 140 * bound / most, "bound");
    page.rect(x + width * 0.5, 170 - 140 * speedup / most, width * 0.25, 140 * speedup / most, "attention");
    page.label(x + width * 0.625, 164 - 140 * speedup / most, fmt::format("{:.2f}×", speedup), "middle");
    page.label(x + width * 0.475, 190, fmt::format("{} gpus", point.gpus), "middle", "soft");
    x += width;
  }
  page.add("</svg></section>");
}

}  // namespace

std::vector<ScalePoint> scale_points(const Study& study, const PolicyChoice& base, const PolicyChoice& cad,
                                     Distribution distribution, uint64_t seed) {
  std::vector<ScalePoint> points;
  for (const int64_t times : {1, 2, 4, 8}) {
    ClusterSetup setup = study.setup;
    if (setup.servers > 0 || setup.gpus * times % 4 != 0 || setup.tokens * times % 4 != 0) continue;
    setup.gpus = setup.gpus * times / 4;
    setup.tokens = setup.tokens * times / 4;
    try {
      check_cluster(setup);
      check_policy(setup, base);
    } catch (const InputError&) {
      continue;  // too small for the model, the context or the degrees
    }
    const StepDocuments documents = drawn_documents(setup, distribution, seed);
    points.push_back({setup.gpus, simulate_step(setup, base, documents).seconds,
                      simulate_step(setup, cad, documents).seconds, balanced_seconds(setup, documents)});
  }
  return points;
}

std::string report_page(const ReportInputs& inputs) {
  const Study& study = *inputs.study;
  const ClusterSetup& setup = study.setup;
  Page page;
  page.add("{}", kHead);
  page.add(
      "<h1>{} on {} {}</h1><p>tensor parallel {}, pipeline {}, {} data-parallel ranks · {} tokens a step in "
      "chunks of "
      "{} · {} micro-batches of {} nano-batches · tolerance {}</p>",
      escaped(setup.model.name), setup.gpus, escaped(setup.profile.name), setup.tp, setup.pp, setup.ranks(),
      setup.tokens, setup.context, setup.micro_batches, setup.nano_batches, setup.tolerance);
  add_policies(page, study);
  add_time_bars(page, study);
  add_ranks(page, inputs);
  add_timelines(page, inputs);
  add_bytes(page, inputs);
  add_scale(page, inputs);
  page.add(
      "<p>MFU: 6 flops a weight and token and 12 · heads · head_dim · layers a causal pair, over seconds · "
      "gpus · "
      "peak. Predicted by distca simulate; constants: {}</p></main></body></html>\n",
      escaped(setup.profile.fit_note));
  return page.take();
}

}  // namespace distca
