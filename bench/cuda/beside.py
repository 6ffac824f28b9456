"""Holds what the programs that measure a peer share. They run alone, row by row, or beside one of the benches. Such a bench
requests each row on its standard output ("peer? ROW") and reads the answer, a line of text, on its standard input."""
import argparse
import os
import subprocess


def parser_of(program, description, row_type, row_form, bench):
    """Returns a parser of --row, --beside and --check; `bench` is the program that --beside runs."""
    parser = argparse.ArgumentParser(prog=program, description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", default=[], type=row_type, metavar=row_form)
    parser.add_argument("--beside", nargs=argparse.REMAINDER, metavar="PROGRAM …", help=f"{bench} and its arguments")
    parser.add_argument("--check", action="store_true")
    parser.set_defaults(bench=bench)
    return parser


def parsed(parser):
    """Returns the options, with exactly one of --row, --beside and --check."""
    options = parser.parse_args()
    if options.check and (options.row or options.beside is not None):
        parser.error("--check stands alone")
    if options.row and options.beside is not None:
        parser.error("--row and --beside exclude each other")
    if options.beside == []:
        parser.error(f"--beside needs {options.bench} and its arguments")
    if not options.check and not options.row and not options.beside:
        parser.error("give --row, --beside or --check")
    if options.beside and not (os.path.isfile(options.beside[0]) and os.access(options.beside[0], os.X_OK)):
        parser.error(f"--beside {options.beside[0]}: no such program")
    return options


def run_beside(command, answer):
    """Runs the bench, answers its requests with answer(row), passes its other lines on, and returns its exit code."""
    bench = subprocess.Popen([*command, "--peer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in bench.stdout:
        if line.startswith("peer? "):
            bench.stdin.write(answer(line.removeprefix("peer? ").strip()) + "\n")
            bench.stdin.flush()
        else:
            print(line, end="", flush=True)
    bench.stdin.close()
    return bench.wait()
