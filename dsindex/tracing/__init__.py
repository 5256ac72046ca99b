"""From a training sample to the lines of the inputs that its tokens come from, and back."""
