// `distca data build` and `distca data info`
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/check.h"
#include "base/json.h"
#include "cli/commands.h"
#include "train/dataset_report.h"
#include "train/indexed_dataset.h"
#include "train/text_dataset.h"

namespace distca {
namespace {

struct BuildOptions {
  std::string out, tokenizer = "bytes";
  std::vector<std::string> paths;
};

struct InfoOptions {
  std::string prefix, json;
  int32_t ranks = 8;
  BatchInputs batch;
};

/// `--tokens` may be this large for any data set, and as large as the data set itself.
constexpr int64_t kTokensOfAnyStep = 1 << 20;

/// One line that is rewritten on a terminal, and a new one now and then elsewhere.
class Progress {
 public:
  explicit Progress(size_t files) : files_(files) {}

  void operator()(const TextDatasetReport& report, int64_t done) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10))) return;
    last_ = now;
    std::fprintf(stderr, "%s%" PRId64 " of %zu files, %" PRId64 " tokens%s", terminal_ ? "\r" : "", done,
                 files_, report.tokens, terminal_ ? "" : "\n");
    shown_ = true;
  }
  void end() const {
    if (terminal_ && shown_) std::fputs("\r\033[K", stderr);
  }

 private:
  size_t files_;
  bool terminal_ = ::isatty(STDERR_FILENO) != 0, shown_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void build(const BuildOptions& options) {
  DISTCA_CHECK_INPUT(std::filesystem::path(options.out).has_filename(),
                     "--out \"{}\": takes the prefix of the two files to write, as in --out text",
                     options.out);
  const std::filesystem::path folder = std::filesystem::path(options.out).parent_path();
  DISTCA_CHECK_INPUT(folder.empty() || std::filesystem::is_directory(folder),
                     "--out {}: there is no folder {}", options.out, folder.string());
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
  const std::vector<std::string> files = find_files(options.paths);
  Progress progress(files.size());
  const TextDatasetReport report = build_text_dataset(options.out, files, *tokenizer, std::ref(progress));
  progress.end();
  std::printf("%s.bin, %s.idx: %" PRId64 " documents, %" PRId64 " tokens of %" PRId64 " bytes of text\n",
              options.out.c_str(), options.out.c_str(), report.documents, report.tokens, report.bytes);
  if (report.empty + report.binary + report.unreadable > 0) {
    std::printf("skipped: %" PRId64 " empty, %" PRId64 " binary, %" PRId64
                " unreadable or special files or links to folders\n",
                report.empty, report.binary, report.unreadable);
  }
}

double share(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

double all_pairs(const LengthReport& lengths) {
  double sum = 0;
  for (const LengthBin& bin : lengths.bins) sum += bin.pairs;
  return sum;
}

void print_lengths(const IndexedDataset& dataset, const LengthReport& lengths) {
  std::printf("%s: %" PRId64 " documents, %" PRId64 " tokens of type %s\n", dataset.prefix().c_str(),
              lengths.documents, lengths.tokens, token_type_name(dataset.index().type()));
  if (lengths.tokens == 0) return;
  std::printf("longest: document %" PRId64 " with %" PRId64 " tokens, %.1f times the mean\n\n",
              lengths.longest_document, lengths.longest,
              share(static_cast<double>(lengths.longest) * static_cast<double>(lengths.documents),
                    static_cast<double>(lengths.tokens)));
  std::printf("%21s %10s %8s %10s\n", "tokens", "documents", "tokens", "attention");
  for (const LengthBin& bin : lengths.bins) {
    std::printf("%10" PRId64 "–%-10" PRId64 " %10" PRId64 " %7.1f%% %9.1f%%\n", bin.least, bin.most,
                bin.documents,
                100 * share(static_cast<double>(bin.tokens), static_cast<double>(lengths.tokens)),
                100 * share(bin.pairs, all_pairs(lengths)));
  }
}

void print_skew(const InfoOptions& options, const SkewReport& skew) {
  std::printf("\npacked into equal chunks of %d ranks, %" PRId64 " tokens a step in %" PRId64
              " parts, %" PRId64 " steps:\n",
              options.ranks, options.batch.tokens_per_batch, options.batch.nano_batches, skew.steps);
  std::printf("attention load of the busiest rank ÷ mean: %.2f on average, %.2f at worst\n", skew.mean,
              skew.worst);
  std::printf(
      "so attention takes %.2f times as long as on ranks that share it evenly; padding %.1f%% of rows\n",
      skew.mean, 100 * skew.padding);
  if (skew.split > 0) {
    std::printf("(%" PRId64 " documents longer than a part's %" PRId64 " tokens were cut for this)\n",
                skew.split, options.batch.rows());
  }
}

Json info_json(const IndexedDataset& dataset, const LengthReport& lengths) {
  Json histogram = Json::array();
  for (const LengthBin& bin : lengths.bins) {
    histogram.push_back({{"least", bin.least},
                         {"most", bin.most},
                         {"documents", bin.documents},
                         {"tokens", bin.tokens},
                         {"pairs", bin.pairs}});
  }
  return {{"prefix", dataset.prefix()},       {"type", token_type_name(dataset.index().type())},
          {"documents", lengths.documents},   {"tokens", lengths.tokens},
          {"longest", lengths.longest},       {"longest_document", lengths.longest_document},
          {"histogram", std::move(histogram)}};
}

Json packing_json(const InfoOptions& options, const SkewReport& skew) {
  return {{"ranks", options.ranks},
          {"tokens_per_batch", options.batch.tokens_per_batch},
          {"nano_batches", options.batch.nano_batches},
          {"steps", skew.steps},
          {"load_max_over_mean", skew.mean},
          {"worst_load_max_over_mean", skew.worst},
          {"padding", skew.padding},
          {"split_documents", skew.split}};
}

void info(const InfoOptions& options) {
  const auto dataset = std::make_shared<const IndexedDataset>(options.prefix);
  const TokenSource source = token_source(dataset);
  const LengthReport lengths = report_lengths(source);
  const int64_t most_tokens = std::max(kTokensOfAnyStep, lengths.tokens);
  DISTCA_CHECK_INPUT(
      options.batch.tokens_per_batch <= most_tokens,
      "--tokens {}: a step would hold the data set's {} tokens over and over; at most {} make sense",
      options.batch.tokens_per_batch, lengths.tokens, most_tokens);
  SkewReport skew;
  if (lengths.tokens > 0) skew = report_skew(source, options.batch, options.ranks);
  if (options.json != "-") {
    print_lengths(*dataset, lengths);
    if (lengths.tokens > 0) print_skew(options, skew);
  }
  if (options.json.empty()) return;
  Json json = info_json(*dataset, lengths);
  json["packing"] = lengths.tokens > 0 ? packing_json(options, skew) : Json(nullptr);
  write_json(json, options.json);
}

void add_build(CLI::App& data) {
  auto options = std::make_shared<BuildOptions>();
  CLI::App* command = data.add_subcommand("build", "turn files and folders of text into a data set");
  command->add_option("--out", options->out, "prefix of the .bin and .idx files to write")->required();
  command->add_option("--tokenizer", options->tokenizer, "bytes, or the path of a SentencePiece model")
      ->capture_default_str();
  command->add_option("paths", options->paths, "files, each one document, and folders of them")->required();
  command->callback([options] { build(*options); });
}

void add_info(CLI::App& data) {
  const auto at_least_one = [](const std::string& text) {
    return std::strtoll(text.c_str(), nullptr, 10) > 0 ? std::string() : text + " is not at least 1";
  };
  auto options = std::make_shared<InfoOptions>();
  options->batch.tokens_per_batch = 65536;
  CLI::App* command = data.add_subcommand("info", "describe a data set, and what its mixed lengths cost");
  command->add_option("prefix", options->prefix, "prefix of its .bin and .idx files")->required();
  command->add_option("--ranks", options->ranks, "ranks a step is packed onto")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--tokens", options->batch.tokens_per_batch,
                   "tokens of a step, over all ranks; at most 2^20, or the data set's where it has more")
      ->check(at_least_one)
      ->capture_default_str();
  command->add_option("--nano-batches", options->batch.nano_batches, "parts of a step, packed separately")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  command->add_option("--json", options->json, "write the same as JSON to this file; - is standard output");
  command->callback([options] { info(*options); });
}

}  // namespace

void add_data_command(CLI::App& program) {
  CLI::App* data = program.add_subcommand("data", "make and describe data sets");
  data->require_subcommand(1);
  add_build(*data);
  add_info(*data);
}

}  // namespace distca
