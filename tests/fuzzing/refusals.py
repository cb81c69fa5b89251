"""What this package and native onnxruntime refuse differently on purpose, and what is still missing."""

from __future__ import annotations

# What this package refuses on purpose although native computes it: (pattern found in the message, reason).
STRICTER = [
    (": position has shape", "native takes the first of several positions in a sequence, which ONNX has one of"),
    ("does not fit in spatial dimension", "native gives something for some windows that do not fit"),
    ("is longer than axis", "native leaves out what a condition of Compress has too many"),
    ("is none of none, add", "native takes an unknown reduction for none"),
    ("cannot be joined along axis", "native leaves empty tensors out of a Concat, whatever their shape"),
    (r"new_axis is -?\d+, must be 0 or 1", "native takes any other number for 1"),
    (r"Resize .* (scales|sizes) of shape \[1, \d+\]", "native takes as many scales as there are axes, of any shape"),
    (r"TopK .* k is -?\d{10,}", "native takes the lower 32 bits of how many elements TopK is to find"),
    (r"CumSum .* axis -?\d+ out of range", "native looks at no axis where there is nothing to sum"),
    (r"GroupNormalization .* must have shape \[1\]", "native takes a scalar for a vector of one element"),
    (
        r"ReverseSequence .* must be 0 and 1",
        "native takes axes of ReverseSequence that are negative, whatever they are",
    ),
    (r"scan_(input|output)_directions \[.*1099511627776", "native takes the lower 32 bits of a direction"),
    (
        r"(Softmax|Hardmax) .* axis -?\d+ out of range",
        "native takes the lower 32 bits of an axis, and looks at none where there is nothing to sum",
    ),
    (r"MeanVarianceNormalization .* axis -?\d+ out of range", "native takes any 4 axes for all of them"),
    (r"Expand .* shape must have one dimension", "native takes a scalar for a shape"),
    (r"PRelu .* slope .* does not broadcast to", "native broadcasts both ways"),
    (r"CumSum .* must hold one element", "native looks at no axis where there is nothing to sum"),
    (r"GatherND .* tuples of .*\[(\d+, )*0\]\)? do not fit", "native takes tuples of no index"),
    (r"LayerNormalization .* bias is .*\[0[],].*must have shape", "native takes a bias without elements for none"),
    (r"CenterCropPad .* must not be negative", "native slices to negative extents"),
    (r"Gelu .* approximate is", "native expands it, and takes any other word for none"),
    (r"(Resize|Upsample) .* (sizes|scales) \[\[.* numbers", "native looks at no shape of sizes and scales"),
    (
        r"(Reduce\w+|Squeeze|MeanVarianceNormalization) .* name an axis twice",
        "native takes axes that are named twice as if they were named once",
    ),
]

# What this package computes although native refuses it: (parts of native's message, " ... " between them; reason).
LOOSER = [
    ("output_padding", "more output padding than a stride is more zeros"),
    ("pool_attributes.h:88", "padding as wide as the window is padding all the same"),
    (
        "with zero effective input extent",
        "an image of which pads leave nothing, and to which they add nothing, is empty",
    ),
    ("Scale value should be greater than 0", "a size of 0 is an image without elements"),
    ("Subgraph must have the shape set", "native must know the shapes of what a body gives before it runs"),
    ("k tensor should be a 1D tensor of size 1", "a scalar is as good as a vector of one element"),
    ("Op (QLinearAdd) [TypeInferenceError]", "zero points are optional"),
    ("Op (QLinearMul) [TypeInferenceError]", "zero points are optional"),
    (
        "running SplitToSequence ... void onnxruntime::Tensor::Reshape",
        "keepdims does not count where the split is given",
    ),
    ("K input must be a one-dimensional", "a scalar is as good as a vector of one element"),
    ("padding values must be non-negative", "SAME pads that would be negative are 0"),
    ("Unsupported pooling size", "pools of more dimensions than 3 are global pools all the same"),
    ("axes_tensor->", "a scalar is as good as a vector of one axis"),
    ("SetOutputSize", "a pool of no channels is no channels"),
    ("axes_tensor !", 'an input named "" is one that is not given'),
    ("Op (Loop) [TypeInferenceError]", "a count or condition of shape [1] is as good as a scalar"),
    ("of operator (Loop)", "a count of another integer type is a count"),
    ("of operator (DequantizeLinear)", "a scale of another float type is a scale"),
    ("of input 'sizes' (0)", "how many sizes there are is known when they are"),
    ("lrn.cc:59", "channels have neighbours whatever the number of dimensions after them"),
    ("must be a scalar", "a scale or zero point of shape [1] is as good as a scalar"),
    ("Dilation not supported for AutoPadType", "pads follow from dilations as from strides"),
    ("Batch size must be greater than 0", "a batch of none is none"),
    ("Pad reflect requires axis length", "an axis of one element is reflected into itself, as numpy does"),
    ("conv_integer.cc:52", "weights have a zero point for each channel, or one"),
]

# Types that are still missing: part of the message.
MISSING = ("alpha and beta must be 1 for type", 'Erf "', "has no form for")
