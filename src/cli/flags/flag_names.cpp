#include "cli/flags/flag_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "base/nearest_word.h"
#include "cli/flags/foreign_names.h"

namespace hadal::cli {
namespace {

// Returns false for a flag that only other commands honour. The name of such a flag must be written in full.
bool known_in(const Flag& flag, Command command) {
  if (flag.flag_class != FlagClass::kHonoured || command == Command::kNone) return true;
  return (flag.commands & static_cast<CommandSet>(command)) != 0;
}

const Flag* target_of(const Flag& flag, Command command) {
  return flag.flag_class == FlagClass::kAlias ? find_flag(flag.text, command) : &flag;
}

// Returns the flags whose names begin with `name`. If the command honours any of them, flags that are only
// accepted or refused are left out.
std::vector<const Flag*> flags_beginning_with(std::string_view name, Command command) {
  std::vector<const Flag*> targets;
  if (name.empty()) return targets;
  for (const Flag& flag : flag_table()) {
    if (!flag.name.starts_with(name)) continue;
    // A name may have several rows; only the row that applies in this command is considered.
    const Flag* target = find_flag(target_of(flag, command)->name, command);
    if (known_in(*target, command) && std::find(targets.begin(), targets.end(), target) == targets.end())
      targets.push_back(target);
  }
  if (command != Command::kNone) {
    const auto is_own = [](const Flag* flag) { return flag->flag_class == FlagClass::kHonoured; };
    if (std::any_of(targets.begin(), targets.end(), is_own)) std::erase_if(targets, std::not_fn(is_own));
  }
  return targets;
}

Status ambiguous(std::string_view spelled, const std::vector<const Flag*>& targets) {
  std::string list;
  for (size_t i = 0; i < targets.size() && i < 6; ++i)
    list += fmt::format("{}--{}", i ? ", " : "", targets[i]->name);
  if (targets.size() > 6) list += ", …";
  return invalid_argument("{} may stand for any of {}; write more of its name", spelled, list);
}

// Returns the error for an unknown flag. It suggests the nearest flag that the command honours, or an
// accepted flag of SGLang if that is nearer. If none of these is near, it suggests a flag of another command.
Status unknown(Command command, std::string_view spelled, std::string_view name) {
  std::vector<std::string_view> own = {"help"};
  std::vector<std::string_view> accepted, elsewhere;
  for (const Flag& flag : flag_table()) {
    const Flag& target = *target_of(flag, command);
    if (target.flag_class == FlagClass::kError) continue;
    (!known_in(target, command)                  ? elsewhere
     : target.flag_class == FlagClass::kHonoured ? own
                                                 : accepted)
        .push_back(flag.name);
  }
  std::string_view nearest = nearest_word(name, own);
  const std::string_view other = nearest_word(name, accepted);
  if (nearest.empty() || (!other.empty() && edit_distance(name, other) < edit_distance(name, nearest)))
    nearest = other;
  if (nearest.empty() && !(nearest = nearest_word(name, elsewhere)).empty()) {
    return invalid_argument("unknown flag {}; the nearest one is --{}, which belongs to {}", spelled, nearest,
                            commands_with(target_of(*find_flag(nearest), Command::kNone)->name));
  }
  if (nearest.empty())
    return invalid_argument("unknown flag {}; `{} --help` lists the flags", spelled, command_name(command));
  return invalid_argument("unknown flag {}; the nearest one is --{}", spelled, nearest);
}

}  // namespace

std::string command_name(Command command) {
  return command == Command::kNone ? "hadal" : fmt::format("hadal {}", info_of(command).name);
}

Result<const Flag*> resolve_name(Command command, std::string_view spelled) {
  std::string name(spelled.starts_with("--") ? spelled.substr(2) : std::string_view());
  std::replace(name.begin(), name.end(), '_', '-');
  const Flag* elsewhere = nullptr;  // a flag of exactly this name that only other commands have
  if (const Flag* exact = find_flag(name, command)) {
    const Flag* target = target_of(*exact, command);
    if (known_in(*target, command)) return target;
    // SGLang's one-batch benchmark accepts --output for its --output-len, but here another command has a flag
    // --output. A full name is read as the beginning of a longer one in no other case.
    if (command != Command::kBenchOneBatch || target->name != "output") elsewhere = target;
  }
  std::vector<const Flag*> targets;
  if (elsewhere == nullptr) targets = flags_beginning_with(name, command);
  if (targets.size() == 1) return targets[0];
  if (const auto advice = foreign_flag_advice(command, spelled))
    return invalid_argument("{}: {}", spelled, *advice);
  if (elsewhere != nullptr) {
    return invalid_argument("{} does not apply to `{}`; it belongs to {}", spelled, command_name(command),
                            commands_with(elsewhere->name));
  }
  if (targets.size() > 1) return ambiguous(spelled, targets);
  return unknown(command, spelled, name);
}

}  // namespace hadal::cli
