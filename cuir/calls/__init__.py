"""What a call of a kernel must satisfy, on a CPU or a GPU: dims and consts out of its arguments, alignment, memory that arguments share, lengths that fit 32 bits."""
