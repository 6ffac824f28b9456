# When the program is installed, this writes its manual pages and completions, which the program makes from
# its table of flags. HADAL_BINARY is the program; HADAL_MANDIR and HADAL_DATADIR are folders below the
# prefix.
set(prefix $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX})

function(write_output file)
  get_filename_component(folder ${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${HADAL_BINARY} ${ARGN} OUTPUT_FILE ${file} COMMAND_ERROR_IS_FATAL ANY)
  message(STATUS "Installing: ${file}")
endfunction()

write_output(${prefix}/${HADAL_MANDIR}/man1/hadal.1 --man)
execute_process(COMMAND ${HADAL_BINARY} --flags --json OUTPUT_VARIABLE table COMMAND_ERROR_IS_FATAL ANY)
string(JSON commands GET "${table}" commands)
string(JSON count LENGTH "${commands}")
math(EXPR last "${count} - 1")
foreach(index RANGE ${last})
  string(JSON name GET "${commands}" ${index} name)
  string(REPLACE " " "-" page ${name})
  string(REPLACE " " ";" words ${name})
  write_output(${prefix}/${HADAL_MANDIR}/man1/hadal-${page}.1 --man ${words})
endforeach()

write_output(${prefix}/${HADAL_DATADIR}/bash-completion/completions/hadal --completion bash)
write_output(${prefix}/${HADAL_DATADIR}/zsh/vendor-completions/_hadal --completion zsh)
write_output(${prefix}/${HADAL_DATADIR}/fish/vendor_completions.d/hadal.fish --completion fish)
