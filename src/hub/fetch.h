// Finds a model by the text that a user gives: a directory, a model that came with the program, or the name
// of a model on the Hugging Face hub. Such a model is fetched into the hub's cache unless it is there. The
// functions block; several threads and processes may call them at once, also for the same model.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "hub/download.h"
#include "hub/environment.h"
#include "hub/model_id.h"
#include "hub/needed_files.h"

namespace hadal::hub {

// Asks the hub which commit the revision is, fetches the files of `scope` that the cache lacks, and returns
// the snapshot's directory. The errors are kUnsupported when environment.offline is set, kNotFound when the
// hub has no such model, revision or file, and those of download_files; they name the model.
Result<std::filesystem::path> fetch_model(const ModelId& id, FetchScope scope,
                                          const HubEnvironment& environment, const FetchCallbacks& callbacks);

// Returns `model_path` itself if it is a directory; otherwise a model of that name that came with the program
// (base/install_paths.h); otherwise the directory of the snapshot that org/name[@revision] names. A cached
// snapshot with all files of `scope` is used without asking the hub; otherwise fetch_model fetches the
// missing files. The error is kNotFound when nothing of this name exists here and environment.offline is set.
Result<std::filesystem::path> locate_model(const std::string& model_path, FetchScope scope,
                                           const HubEnvironment& environment,
                                           const FetchCallbacks& callbacks);

}  // namespace hadal::hub
