// What the Python tests ask of data sets, from the command line:
//
//   dataset_program write PREFIX TYPE DOCUMENTS   a data set of a JSON file's lists of tokens
//   dataset_program read PREFIX                   {"type", "documents"}, as JSON on standard output
#include <cstdio>

#include "base/json.h"
#include "train/indexed_dataset.h"

namespace distca {
namespace {

void write(const std::string& prefix, const std::string& type, const std::string& documents) {
  IndexedDatasetWriter writer(prefix, find_token_type(type));
  for (const Json& document : read_json(documents)) writer.add_document(document.get<std::vector<int64_t>>());
  writer.commit();
}

void read(const std::string& prefix) {
  const IndexedDataset dataset(prefix);
  Json documents = Json::array();
  for (int64_t i = 0; i < dataset.index().documents(); ++i) {
    std::vector<int64_t> tokens(static_cast<size_t>(dataset.index().document_length(i)));
    dataset.read(i, {0, static_cast<int64_t>(tokens.size())}, tokens.data());
    documents.push_back(tokens);
  }
  write_json({{"type", token_type_name(dataset.index().type())}, {"documents", documents}}, "-");
}

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  try {
    if (argc == 5) {
      distca::write(argv[2], argv[3], argv[4]);
    } else {
      distca::read(argv[2]);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dataset_program: %s\n", error.what());
    return 1;
  }
  return 0;
}
