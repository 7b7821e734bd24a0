"""Every code of a diagnostic: its title and what it means at length. Owns no rule; a test compares it with the codes that the sources use."""

from __future__ import annotations

from dataclasses import dataclass

FAMILIES = {
    "P": "syntax",
    "N": "names",
    "T": "types and shapes",
    "S": "structure, roles and barrier protocol",
    "M": "memory and resources",
    "R": "races",
    "D": "deadlocks",
    "L": "lowering and compiling",
    "V": "verification",
    "X": "transfer of a specification",
    "U": "calls: files, options, arguments, what is installed",
}


@dataclass(frozen=True)
class Code:
    """`call`: the call is to blame and not the program (exit code 2 instead of 1)."""

    code: str
    title: str
    help: str
    call: bool = False


CODES: dict[str, Code] = {}


def _enter(call: bool, *entries: tuple[str, str, str]) -> None:
    for code, title, text in entries:
        if code in CODES:
            raise ValueError(f"code {code} is listed twice")
        CODES[code] = Code(code, title, text, call)


def family(code: str) -> str:
    """The family of a code, in words."""
    return FAMILIES.get(code[:1], "")


def markdown() -> str:
    """Every code as one page."""
    lines = ["# Errors", "", "Made from `cuir/codes.py` by `cuir explain --markdown`; do not edit.", "",
             "An error names a place and a code: `file:line:column: error[T111]: ...`. `cuir explain T111` prints what stands here. Commands end with 1 if the program is wrong, with 2 if the",
             "call is (marked *call* below), and with 0 if all is well."]  # fmt: skip
    for letter, words in FAMILIES.items():
        entries = [c for c in CODES.values() if c.code.startswith(letter)]
        if entries:
            lines += ["", f"## {letter}: {words}", ""]
            lines += [f"* **{c.code}** {c.title}{' (*call*)' if c.call and letter != 'U' else ''}. {c.help}" for c in entries]
    return "\n".join(lines) + "\n"


_enter(False,
    ("P001", "something else is expected here", "The text is no CuIR at this place. The message names what may stand there; the line above is often where something is missing."),
    ("P002", "unknown character", "Names are ASCII letters, digits and `_`; strings are plain words in quotes."),
    ("P003", "indentation", "Blocks are indented by spaces (four by custom), all lines of a block alike; a block has at least one statement."),
    ("P004", "brackets do not match", "A bracket is never closed, or closed by one of another kind. The note shows where it was opened."),
    ("P005", "a Python statement that CuIR does not have", "CuIR has assignments, for, if, with role(...), calls and the return of a @func: no while, break, continue, import, class, try, pass."),
    ("P006", "a Python expression that CuIR does not have", "No lambda, comprehension, `in`, `is`, None, **, @, shifts, := or formatted strings. The hint says what to write."),
    ("P007", "a chained comparison", "`a < b < c` does not exist. On scalars write `a < b and b < c`, on tiles `(a < b) & (b < c)`."),
    ("P008", "a colon is missing", "`if`, `else`, `for`, `with` and `def` lines end in a colon."),
    ("P009", "not a target", "Names, separated by commas, stand left of `=`; one assignment a statement. Memory is written by store(place, tile)."),
    ("P010", "a misplaced return", "A @func ends in its only return; a kernel has none. An early return becomes an `if`."),
    ("P011", "a malformed signature", "Parameters of a kernel are `X: Global[dtype, dims...]`, `x: f32`, and after `*` consts `C: const = 1`. Parameters of a @func are plain names."),
    ("P012", "a malformed decorator", '`@func`, or `@kernel(arch="sm_90a", cluster=2)` with the cluster left out for 1.'),
    ("P013", "only definitions stand at the top", "A file holds constants `NAME = literal`, @func and @kernel definitions, and comments."),
    ("P014", "misordered arguments", "Arguments by position come first, each name is given once."),
    ("P015", "a malformed slice", "Slices are `:` and `start : stop`, without a step."),
    ("P016", "a misplaced string", "Strings are the words given to a primitive (a role's name, hint=) and the arch of a kernel."),
    ("P017", "a malformed number or constant", "Numbers are decimal integers and floats; infinity is `inf`. A constant is one name and one literal."),
    ("N001", "a definition with a name that is taken", "Constants, functions and kernels of a file have different names."),
    ("N002", "a parameter twice", "The parameters of a function or kernel have different names."),
    ("N101", "an unknown name", "The name is no local, parameter, dim, constant or function. In a @func free names are parameters of the kernel that uses it."),
    ("N102", "`_` is read", "`_` takes a value that nobody needs."),
    ("N103", "a name read before it is bound", "Each path to a read binds the name: bind it before the branch or loop that may not run."),
    ("N104", "a @func names a local of the kernel", "Free names of a @func are parameters of the kernel, constants and functions. Pass locals as arguments."),
    ("N105", "an unknown primitive", "The name called is neither in the table (`cuir ops`) nor a @func of the file."),
    ("N106", "a function calls itself", "Functions are inlined, so there is no recursion."),
    ("N107", "an unknown argument name of a @func", "The name is no parameter of the function, or was given by position already."),
    ("N108", "a wrong number of arguments", "The message shows the function's parameters."),
    ("N113", "a dim with the name of a parameter", "A dim is an i32 scalar of the kernel, so its name must be free."),
    ("N115", "an unknown attribute", "The only attribute is `.T` of a shared view; barriers have methods, which are called."),
    ("N116", "an unknown argument name of a primitive", "`cuir ops NAME` shows the parameters."),
    ("N117", "an argument twice", "It is given by position and by name, or by name twice."),
    ("N118", "arguments of a primitive", "One is missing, or there are too many. `cuir ops NAME` shows the parameters."),
    ("N119", "a method of something that is no barrier", "Only barriers have methods: expect, arrive, wait; sync and arrive for named ones."),
    ("N120", "an unknown method of a barrier", "mbarriers have expect, arrive and wait; named barriers sync and arrive."),
    ("T101", "an i32 scalar is needed", "The argument counts something: it is one integer for the worker, neither a float nor a tile."),
    ("T102", "a value must be known", "Shapes, counts and flags are known when the kernel is specialised: made of literals, constants and const parameters."),
    ("T103", "a known value of the wrong kind", "The value is known but is no integer, bool, dtype, word or list of dims as the place needs."),
    ("T104", "a positive integer is needed", "Dims, counts and stages are 1 or more."),
    ("T105", "a tile has rank 2", "Write [R, 1] for a value per row and [1, C] for one per column."),
    ("T106", "shared memory is needed", "The argument is an array made by shared(...) or a view of one."),
    ("T107", "a view of two dims is needed", "Pick the stage first: `x[s]` of a ring `x`."),
    ("T108", "a box of a tensor is needed", "Slice a parameter: `Q[b, h, m : m + 64, :]`."),
    ("T109", "a box of unknown length", "A box has known sides: slice the run-time dim `x : x + c` with a known c."),
    ("T110", "a scalar or a tile is needed", "A view is no value: load(view) reads it into registers."),
    ("T111", "different dtypes", "Nothing is converted silently, apart from literals. cast(x, dtype) converts."),
    ("T112", "a dtype that the operation does not take", "Floats for arithmetic of floats, i32 and bool for bits, numbers for minima."),
    ("T113", "shapes do not broadcast", "Dims agree or one of them is 1, as in NumPy."),
    ("T114", "`/` of integers", "`/` divides floats; `//` divides integers and rounds down."),
    ("T115", "`and`, `or`, `not` of something that is no bool scalar", "On tiles write & | ~; compare numbers first."),
    ("T116", "a condition that is no bool scalar", "All threads of a worker go one way. A choice per element is where(cond, x, y)."),
    ("T117", "`x if cond else y` of tiles", "It chooses between scalars. For tiles there are where(...) and the if statement."),
    ("T118", "no scalar dtype", "Scalars are i32, f32 or bool. An f16 element is read as a tile: x[rows(16), 0]."),
    ("T119", ".T of something else", "Only views of shared memory with two dims have a transpose. A register tile is stored and read through a view."),
    ("T120", "a transposed view in a copy, load or store", "The transpose of a view is an operand of a product and nothing else."),
    ("T121", "a mask that is no bool tile", "mask= takes a comparison of tiles."),
    ("T122", "add=True to shared memory", "Atomic addition goes to tensors."),
    ("T123", "a tile that does not fit its place", "A store converts and broadcasts nothing: shape and dtype of the tile are those of the view."),
    ("T124", "a copy between dtypes", "Copies move bytes. Convert in registers: load, cast, store."),
    ("T125", "a copy between shapes", "All dims of the box but the last flatten into rows; rows and columns equal those of the shared view."),
    ("T126", "rows of a copy are multiples of 16 bytes", "Widen the box, or load and store the elements."),
    ("T127", "a bulk copy moves whole panels", "The columns of a bulk copy are a multiple of 128 bytes (64 f16)."),
    ("T128", "a box too long", "A side of a bulk copy's box has at most 256 elements. Issue several copies; one expect may count all their bytes."),
    ("T129", "a bulk copy without its mbarrier", "It lands on one mbarrier: pick a stage of a ring."),
    ("T130", "an unknown hint", "evict_first, evict_last or evict_normal."),
    ("T131", "an operand that cannot be one", "`b` of mma_async lies in shared memory; `a` there or in registers."),
    ("T132", "operands of a product are f16 or bf16", "cast(x, T) before the product; the result is f32."),
    ("T133", "operands of two dtypes", "Both are f16 or both bf16."),
    ("T134", "inner dims differ", "a is [R, K], b is [K, C]. `.T` transposes a shared view: Q @ K^T is mma_async(sQ, sK.T)."),
    ("T135", "the inner dim is a multiple of 16", "That is the depth of one instruction. Pad with zeros."),
    ("T136", "an accumulator of another type", "It is the f32 tile [R, C] of the product."),
    ("T137", "a shape that the tensor core does not have", "R is a multiple of 64 for a warpgroup and of 16 for a warp, C of 8, at most 256 for mma_async."),
    ("T138", "an operand without panels", "Rows of operands in shared memory are whole panels of 128 bytes (64 f16)."),
    ("T139", "mma_wait of something that is no tile", "It takes products, and other tiles for which there is nothing to wait."),
    ("T140", "min or max of one argument", "They are elementwise over two or more. Of a row: row_max(x)."),
    ("T141", "where without a bool tile", "The condition of where is a tile. On scalars: x if cond else y."),
    ("T142", "f32 is needed", "Exponentials, logarithms and reductions are of f32: cast(x, f32)."),
    ("T143", "a cast of a scalar to a dtype that scalars do not have", "Scalars are i32, f32 or bool."),
    ("T144", "a reduction of something that is no tile", "row_max and row_sum reduce the rows of a tile."),
    ("T145", "a ring where one barrier is meant", "Pick a stage: bar[s]."),
    ("T146", "a parity that is not 0 or 1", "The parity of phase f is f % 2; for the i-th use of a ring it is i // stages % 2."),
    ("T150", "a name with two types", "A name has one type in a role. Use another name, or cast."),
    ("T151", "a tuple of another length", "As many names as values stand left of `=`."),
    ("T152", "a view or barrier bound twice", "Names of views and barriers are fixed, so that it is known which memory they mean."),
    ("T153", "a tuple where one value is needed", "Unpack it, or pick one with [0]."),
    ("T154", "division by zero", "The divisor is known to be 0."),
    ("T155", "a tuple indexed by something unknown", "Tuples are taken apart when the kernel is specialised."),
    ("T156", "an unknown dtype of a parameter", "A tensor is of f16, bf16, f32 or i32, or of a const parameter that is a dtype."),
    ("T157", "an unusable dim", "A dim is a name or a positive integer."),
    ("T158", "a number of rows that registers do not have", "Rows of a tile are 1 or a multiple of 64 for a warpgroup, of 16 for a warp."),
    ("T159", "a number of columns that registers do not have", "Columns of a tile are 1 or a multiple of 8."),
    ("T160", "a slice of unknown length", "Write `e : e + c` with the same text e on both sides and a known c."),
    ("T161", "a gather from shared memory", "Index tiles gather from tensors. load(view) reads shared memory."),
    ("T162", "rows of a panelled array", "Arrays of 128-byte panels have a multiple of 8 rows: a swizzle spans 8."),
    ("T163", "arguments of range", "range(stop), range(start, stop) or range(start, stop, step) with a known step."),
    ("T164", "a type that no name can have", "Names stand for scalars, tiles, views, barriers and tuples of them."),
    ("T165", "a subscript of something else", "Tensors, shared arrays, rings of barriers and tuples have subscripts. A register tile has none."),
    ("T166", "too many or too few indices", "An element or gather has an index for every dim; a view may leave out dims at the end."),
    ("T167", "a stage of a barrier that is no ring", "Declare it with stages=."),
    ("T168", "a stage that is no i32 scalar", "A ring has one index."),
    ("T169", "a stage outside of the ring", "Use i % stages."),
    ("T170", "an index that is no i32", "Indices are i32 scalars or tiles."),
    ("T171", "an index outside of a known dim", "The index, or the slice, is known to leave the dim."),
    ("T172", "a tile as the index of a view", "A view has slices and scalars; a gather has an index for each dim and no slice."),
    ("T173", "the last dim of a shared view", "It is kept: slice it, or leave it whole."),
    ("T174", "a slice of shared memory that is not aligned", "Rows are sliced at multiples of 8, columns at whole panels of 128 bytes."),
)  # fmt: skip

_enter(False,
    ("S201", "a declaration behind a role", "Shared arrays, barriers, tiles and scalars of the kernel stand above the first role."),
    ("S202", "a statement before the roles", "Before the roles stand only declarations; work belongs to a role."),
    ("S203", "a kernel without a role", "Something must run: `with role(\"all\", warps=4):`."),
    ("S204", "an expression that does nothing", "Assign it or remove it."),
    ("S205", "a role inside another statement", "Roles stand directly in the kernel: who runs is fixed."),
    ("S206", "a return of a kernel", "Kernels store their results."),
    ("S207", "an unknown architecture", "sm_80 or sm_90a."),
    ("S208", "a cluster that the architecture does not have", "sm_90a has clusters of up to 8 CTAs, sm_80 none."),
    ("S209", "a declaration twice", "Each array, barrier and scalar is declared once."),
    ("S210", "tiles twice", "It fixes the grid, so a kernel calls it once."),
    ("S211", "two roles of one name", "Reports name workers by their role."),
    ("S212", "`with` something else", "`with` opens a role and nothing else."),
    ("S213", "a role's name", "It is a word in quotes."),
    ("S214", "a role's size", "Give warps=n or warpgroups=n, not both."),
    ("S215", "a barrier used by two roles", "All who arrive at an mbarrier, and all users of a named barrier, belong to one role."),
    ("S216", "registers= for some roles only", "Registers move between warpgroups, so all roles say how many they take."),
    ("S217", "not on this architecture", "The primitive needs another arch. `cuir ops NAME` lists those it has."),
    ("S218", "in the wrong place", "Declarations stand before the roles, work stands in them."),
    ("S219", "a warpgroup is needed", "The primitive is done by 128 threads together: give the role warpgroups=."),
    ("S220", "a loop over something else", "`for` runs over range(...) or over what tiles(...) gave."),
    ("S221", "range as a value", "range(...) stands behind `for x in`."),
    ("M301", "too much shared memory", "A CTA of sm_90a has 227 KB, barriers included. Use fewer stages or smaller tiles, or lay arrays over one another with over=."),
    ("M302", "registers of the roles", "registers= is a multiple of 8 from 24 to 256, and the roles together take no more than the CTA has at its launch; a role of warps takes a whole warpgroup's."),
    ("M303", "too many named barriers", "The hardware has 15 for a kernel; a ring takes one a stage."),
    ("M304", "over= something that does not fit", "An array lies over one that is as large, and with panels if it has panels."),
    ("M305", "too many threads", "A CTA has at most 1024 threads."),
)  # fmt: skip

_enter(True,
    ("N109", "which kernel?", "The program has none, or several and none was named: choose with -k."),
    ("N110", "no such kernel", "The program has no kernel of that name; the message lists those it has."),
    ("N111", "no such const", "The kernel has no const parameter of that name; the message lists those it has."),
    ("N112", "a const without a value", "Give it with -c NAME=VALUE or consts={...}; when a kernel is called, tensors give the values of dtypes and dims."),
    ("U100", "a command that cannot be read", "An unknown command or option, or a value that the option does not take. `cuir COMMAND --help` lists them."),
    ("U101", "no such program", "Neither a file nor a kernel or program of the corpus. `cuir corpus` lists the latter."),
    ("U102", "no such variant", "`cuir corpus` lists the variants; your own is named `file.py:function`."),
    ("U103", "not NAME=VALUE", "Options for consts, dims, scalars and parameters take NAME=VALUE, several separated by commas."),
    ("U106", "no such primitive", "`cuir ops` lists them."),
    ("U107", "no such code", "`cuir explain` lists them."),
    ("U108", "a folder or file that cannot be written", "Name another with --out."),
    ("U109", "a dtype that attention kernels do not have", "f16 or bf16."),
    ("U110", "a head dim that the expert kernels do not have", "64 or 128."),
    ("U111", "lengths of dims", "`cuir run` makes up tensors: it needs the length of each run-time dim, -d NAME=LENGTH, and no other."),
    ("U112", "a scalar without a value", "Give it with -s NAME=VALUE."),
    ("U401", "an unknown argument of a call", "The kernel has no tensor or scalar of that name."),
    ("U402", "an argument is missing", "Every tensor and scalar of the kernel is given by name."),
    ("U403", "not a tensor", "The parameter is Global[...]: give a torch.Tensor."),
    ("U404", "a tensor of the wrong dtype", "The dtype is fixed by the signature, by a const, or by another tensor of the call. tensor.to(dtype) converts."),
    ("U405", "a tensor of the wrong rank", "The signature says how many dims it has."),
    ("U406", "strides that a kernel cannot use", "The innermost stride is 1, the others are free but not negative. tensor.contiguous() makes such a copy."),
    ("U407", "tensors on different devices", "Move all to one device."),
    ("U408", "dims that disagree", "Equal names in the signature have equal lengths."),
    ("U409", "an unusable scalar", "Numbers are finite, of the kind that the signature says, and fit 32 bits."),
    ("U410", "a tensor that requires a gradient", "Kernels are not differentiated: call under torch.no_grad(), or detach the tensor."),
    ("U999", "an internal error", "A fault of cuir itself. Set CUIR_DEBUG=1 to see the trace, and report it."),
)  # fmt: skip
