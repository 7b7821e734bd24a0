#!/bin/bash
# Read the orchestration of the kernels that docs/lifting.md lists, without a model: `bash examples/lifting/read_sources.sh FOLDER`.
# FOLDER holds checkouts: flash-attention, FlashMLA, learn-cuda, tiny-flash-attention, cutlass (for its example 88).
# With `--spec SPEC --model NAME --record FILE` in place of `--explain` a model lifts them: the programs beside this file. SPEC was `full` (with `--head-dim 64` for that of hdim 64),
# examples/lifting/rows_attention.py for learn-cuda (with `--dtype bf16`), and examples/lifting/gemm.py for the GEMM (with `--settle examples/lifting/gemm.settled.toml`).
set -e
S=${1:?a folder with the checkouts}
F=$S/flash-attention
no_options=(-D NDEBUG -D FLASHATTENTION_DISABLE_LOCAL -D FLASHATTENTION_DISABLE_VARLEN)

echo "FlashAttention-3, forward, hdim 128: causal; full; full in clusters of two"
forward=("$F/hopper/instantiations/flash_fwd_hdim128_fp16_sm90.cu" -I "$F/hopper" "${no_options[@]}" -D FLASHATTENTION_DISABLE_APPENDKV)
cuir lift "${forward[@]}" --kernel 'DynamicPersistent' --explain
cuir lift "${forward[@]}" --kernel 'C<1>, cute::C<1>, cute::C<1> >.*C<176>.*StaticPersistent' --explain
cuir lift "${forward[@]}" --kernel 'C<2>.*C<176>' --cluster 2 --explain

echo "FlashAttention-3, forward, hdim 64: causal; full"
forward[0]=$F/hopper/instantiations/flash_fwd_hdim64_fp16_sm90.cu
cuir lift "${forward[@]}" --kernel 'DynamicPersistent' --explain
cuir lift "${forward[@]}" --kernel 'StaticPersistent' --explain

echo "FlashAttention-3, backward, hdim 128: causal; full"
backward=("$F/hopper/instantiations/flash_bwd_hdim128_fp16_sm90.cu" -I "$F/hopper" "${no_options[@]}" -D FLASHATTENTION_DISABLE_SOFTCAP)
cuir lift "${backward[@]}" --kernel 'BwdSm90.*C<64>.*true, false, false, false, false, true, false, false.*EpilogueBwd<' --explain
cuir lift "${backward[@]}" --kernel 'BwdSm90.*C<80>.*false, false, false, false, false, true, false, true.*EpilogueBwd<' --explain

echo "FlashAttention-2, forward, hdim 128; a header stands in the place of PyTorch's"
mkdir -p "$S/stub/c10/cuda"
printf '#define C10_CUDA_CHECK(x) (void)(x)\n#define C10_CUDA_KERNEL_LAUNCH_CHECK()\n' > "$S/stub/c10/cuda/CUDAException.h"
cuir lift "$F/csrc/flash_attn/src/flash_fwd_hdim128_fp16_sm80.cu" --arch sm_80 -I "$S/stub" -D FLASHATTENTION_DISABLE_DROPOUT -D FLASHATTENTION_DISABLE_ALIBI \
    -D FLASHATTENTION_DISABLE_SOFTCAP -D FLASHATTENTION_DISABLE_LOCAL -D FLASHATTENTION_DISABLE_UNEVEN_K \
    --kernel 'traits<128, 128, 64, 4.*false, false, false, false, false, false, false, false>' --threads 128 --explain

echo "CUTLASS: files of a few lines name the instantiation"
cuir lift examples/lifting/pingpong.cu --explain
cuir lift examples/lifting/fmha.cu -I "$S/cutlass/examples/88_hopper_fmha" --explain

echo "FlashMLA, learn-cuda, tiny-flash-attention"
cuir lift "$S/FlashMLA/csrc/sm90/decode/dense/instantiations/fp16.cu" -I "$S/FlashMLA/csrc" -I "$S/FlashMLA/csrc/sm90" -I "$S/FlashMLA/csrc/kerutils/include" \
    --flag=-std=c++20 --kernel splitkv_mla --explain
cuir lift "$S/learn-cuda/07_attention/attention_v5.cu" --arch sm_80 --explain
T=$S/tiny-flash-attention/flash_attention_cutlass
cuir lift "$T/standalone_src/flash_attention_cutlass_standalone.cu" --arch sm_80 -I "$T/include" --flag=-include --flag=cute/tensor.hpp \
    --kernel cutlass_kernel --threads 128 --explain
